"""Pages about runs and nights: documents of results, and HTML.

``run_document``, ``history_document`` and ``comparison_document`` are pure functions of facts that were read from the
store; ``render`` is a pure function of a document. Nothing here imports torch.
"""
