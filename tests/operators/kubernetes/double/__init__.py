"""A double of the Kubernetes API, with a list of its gaps.

It is not Kubernetes.

One server on loopback that the official client and kubectl talk to, an Indexed Job controller, a JobSet controller, and
a node that runs each pod's command as a real process with the pod's environment. Pods can be evicted, preempted,
starved of memory, delayed and lost; the API can fail, forbid and fall silent.

What it does: namespaced Jobs, Pods, Services, Secrets, NetworkPolicies and Events are created, read, listed by label,
watched, patched (merge patch) and deleted (grace, propagation, preconditions, owner references); bodies are checked
against the API's own types, unknown fields refused; roles are enforced. ``jobset.py`` has what is done of JobSet, and
``spark.py`` of SparkApplications. Of
the Job controller: Indexed completion, ``suspend``, ``backoffLimit``, ``podFailurePolicy`` (FailJob, Ignore, Count),
``podReplacementPolicy`` Failed, pods of a suspended Job count as failed unless a rule ignores them, containers that a
webhook injects keep a pod running, ``activeDeadlineSeconds``, ``ttlSecondsAfterFinished``, FailureTarget before Failed,
the labels, annotations and variables of pods.

What it does not: no scheduler but a number of places, no node pressure of its own, no image is pulled and no container
made but that of the command (so init containers, sidecars, security contexts, resources, volumes other than scratch,
probes and NetworkPolicies have no effect), no DNS (``{job}-{i}.{service}`` becomes 127.0.0.1 in variables), no
admission, defaulting or quota, no server-side apply or JSON patch, a strategic merge of pods as a plain one, no
pagination, no exec, no back-off between pods, no ``successPolicy`` and no per-index limits; NonIndexed Jobs are
refused.
"""

from __future__ import annotations

from tests.operators.kubernetes.double.double import KubernetesDouble

__all__ = ["KubernetesDouble"]
