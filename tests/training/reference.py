"""A training step written plainly, with autograd.

The engine's analytic gradients are compared with it.

Formulas are spelled out edge by edge and negative by negative; nothing is shared with the package but the config.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

EPSILON = 1e-10


@dataclass
class State:
    """Numbers that a step changes; float64, by entity type or parameter path."""

    embeddings: dict[str, torch.Tensor]
    row_sums: dict[str, torch.Tensor]
    params: dict[str, torch.Tensor]
    param_sums: dict[str, torch.Tensor]

    def copy(self, dtype=torch.float64):
        parts = self.__dict__.values()
        return State(*({key: value.to(dtype, copy=True) for key, value in part.items()} for part in parts))


def operate(name, x, params):
    """Apply one relation's operator to one vector.

    ``params`` are in PBG's order (matrix, then vector).
    """
    if name == "none":
        return x
    if name == "translation":
        return x + params[0]
    if name == "diagonal":
        return x * params[0]
    if name == "linear":
        return params[0] @ x
    if name == "affine":
        return params[0] @ x + params[1]
    half = len(x) // 2
    product = torch.complex(x[:half], x[half:]) * torch.complex(params[0], params[1])
    return torch.cat((product.real, product.imag))


NAMES = {
    "none": [],
    "translation": ["translation"],
    "diagonal": ["diagonal"],
    "linear": ["linear_transformation"],
    "affine": ["linear_transformation", "translation"],
    "complex_diagonal": ["real", "imag"],
}


def two_operators(config):
    return config.dynamic_relations or config.relations[0].reciprocal


def relation_params(config, state, side, rel):
    index = 0 if config.dynamic_relations else rel
    names = NAMES[config.relations[index].operator]
    if not two_operators(config):
        return [state.params[f"relations/{index}/operator/{side}/{name}"] for name in names]
    plural = "" if config.relations[0].operator == "complex_diagonal" else "s"
    return [state.params[f"relations/0/operator/{side}/{name}{plural}"][rel] for name in names]


def compare(config, a, b):
    bias = a[0] + b[0] if config.bias else 0.0
    if config.bias:
        a, b = a[1:], b[1:]
    if config.comparator == "dot":
        return a @ b + bias
    if config.comparator == "cos":
        return a @ b / (a.norm() * b.norm()) + bias
    distance = (a - b).square().sum()
    return bias - (distance if config.comparator == "squared_l2" else distance.clamp_min(1e-30).sqrt())


def edge_loss(config, positive, negatives, columns):
    """Loss of one edge; ``columns`` counts its negatives with the masked ones."""
    if config.loss_fn == "ranking":
        return sum((config.margin - positive + negative).clamp_min(0) for negative in negatives)
    if config.loss_fn == "softmax":
        return torch.stack([positive, *negatives]).logsumexp(0) - positive
    return -logsigmoid(positive) - sum(logsigmoid(-negative) for negative in negatives) / max(columns, 1)


def candidates(config, relation, ends, drawn, count):
    """Yield the offsets of each edge's negatives.

    With them comes the number of columns that PBG has for it.
    """
    edges = len(ends)
    if relation.all_negs:
        for end in ends:
            yield [other for other in range(count) if other != end], count
        return
    own = config.num_batch_negs > 0
    size = min(config.num_batch_negs or config.num_uniform_negs, edges)
    for edge in range(edges):
        chunk = edge // size
        chosen = drawn[chunk].tolist() if drawn is not None else []
        mates = [ends[other] for other in range(chunk * size, min((chunk + 1) * size, edges)) if other != edge]
        yield (mates if own else []) + chosen, len(chosen) + (size if own else 0)


def penalty(config, operator, x):
    """Penalise the numbers of one vector."""
    modulus = x.abs()
    if operator == "complex_diagonal":
        half = len(x) // 2
        modulus = (x[:half].square() + x[half:].square()).sqrt()
    return modulus.pow(2 if config.regularizer == "L2" else 3).sum()


class ReferenceStep:
    """One step of ``config`` on ``state`` (changed in place).

    ``draws`` gives the drawn offsets of each side, (chunks, negatives); ``loops`` the relations that have loops.
    """

    def __init__(self, config, state, batch, draws, loops=()):
        self.config, self.state, self.draws, self.loops = config, state, draws, loops
        self.index = batch.family
        self.relation = config.relations[self.index]
        self.rel = [self.index] * len(batch) if batch.rel is None else batch.rel.tolist()
        self.ends = {"lhs": batch.lhs.rows_M.tolist(), "rhs": batch.rhs.rows_M.tolist()}
        self.weight = [1.0] * len(batch) if batch.weight is None else batch.weight.tolist()
        self.type = {"lhs": self.relation.lhs, "rhs": self.relation.rhs}
        self.scores = {}
        self._renorm()
        for part in (state.embeddings, state.params):
            for value in part.values():
                value.requires_grad_()
        self.loss = self.relation.weight * (
            self.relation.lhs_weight * self._side_loss("lhs") + self.relation.rhs_weight * self._side_loss("rhs")
        )
        self.reg = self._penalties() if config.regularization_coef else torch.zeros((), dtype=torch.float64)
        self.loss = torch.as_tensor(self.loss, dtype=torch.float64)
        if (total := self.loss + self.reg).requires_grad:  # a loss of no negatives at all depends on nothing
            total.backward()
        self.loss, self.reg = self.loss.detach(), self.reg.detach()
        self._adagrad()

    def _renorm(self):
        if self.config.max_norm is None:
            return
        for side in ("lhs", "rhs"):
            table = self.state.embeddings[self.type[side]]
            drawn = self.draws.get(side)
            others = drawn.view(-1).tolist() if drawn is not None else []
            if self.relation.all_negs and not self._disabled(side):
                others = range(len(table))
            for row in {*self.ends[side], *others}:
                if table[row].norm() > self.config.max_norm:
                    table[row] *= self.config.max_norm / (table[row].norm() + 1e-7)

    def _disabled(self, side):
        return self.config.disable_lhs_negs if side == "lhs" else self.config.disable_rhs_negs

    def embedding(self, side, offset):
        row = self.state.embeddings[self.type[side]][offset]
        if self.config.global_emb:
            row = row + self.state.params[f"entities/{self.type[side]}/global_embedding"]
        return row

    def compared(self, side, offset, rel, *, query):
        """Return an end in its compared form.

        The mode decides to which end the operator is applied.
        """
        operated = query if two_operators(self.config) else side == "rhs"
        row = self.embedding(side, offset)
        if not operated:
            return row
        return operate(self.relation.operator, row, relation_params(self.config, self.state, side, rel))

    def _side_loss(self, side):
        config = self.config
        other = "rhs" if side == "lhs" else "lhs"
        disabled = self._disabled(side)
        count = len(self.state.embeddings[self.type[side]])
        negatives = list(candidates(config, self.relation, self.ends[side], self.draws.get(side), count))
        total, self.scores[side] = 0.0, []
        for edge, rel in enumerate(self.rel):
            query = self.compared(other, self.ends[other][edge], rel, query=True)
            offsets, columns = ([], 0) if disabled else negatives[edge]
            if not disabled and self._takes_known_ends():
                columns += 1
                if rel not in self.loops and self.ends["lhs"][edge] != self.ends["rhs"][edge]:
                    offsets = [*offsets, self.ends[other][edge]]
            positive, *others = (
                compare(config, query, self.compared(side, offset, rel, query=False))
                for offset in (self.ends[side][edge], *offsets)
            )
            self.scores[side].append(float(positive.detach()))
            total = total + self.weight[edge] * edge_loss(config, positive, others, columns)
        return total

    def _takes_known_ends(self):
        return self.config.self_negatives and self.relation.lhs == self.relation.rhs and not self.relation.all_negs

    def _penalties(self):
        config, operator = self.config, self.relation.operator
        total = 0.0
        for side in ("lhs", "rhs"):
            other = "rhs" if side == "lhs" else "lhs"
            if side == "rhs" and not two_operators(config):
                break  # the same embeddings again
            for edge, rel in enumerate(self.rel):
                total = (
                    total + self._penalty(other, edge, rel, query=True) + self._penalty(side, edge, rel, query=False)
                )
                if two_operators(config):
                    total = total + self._parameter_penalty(other, rel)
        if not two_operators(config):
            chunked = config.regularizer == "N3" and operator in ("translation", "diagonal", "complex_diagonal")
            edges = len(self.rel)
            size = min(config.num_batch_negs or config.num_uniform_negs, edges)
            chunks = 1 if config.relations[self.index].all_negs else -(-edges // size)
            times = chunks if chunked else edges
            total = total + times * self._parameter_penalty("rhs", self.index)
        return config.regularization_coef * total

    def _penalty(self, side, edge, rel, *, query):
        row = self.compared(side, self.ends[side][edge], rel, query=query)
        if self.config.comparator == "cos":
            biases = int(self.config.bias)
            row = torch.cat((row[:biases], row[biases:] / row[biases:].norm()))
        return penalty(self.config, self.relation.operator, row)

    def _parameter_penalty(self, side, rel):
        params = [value.flatten() for value in relation_params(self.config, self.state, side, rel)]
        return penalty(self.config, self.relation.operator, torch.cat(params)) if params else 0.0

    @torch.no_grad()
    def _adagrad(self):
        state, config = self.state, self.config
        for name, table in state.embeddings.items():
            if table.grad is not None:
                state.row_sums[name] += table.grad.square().mean(1)
                table.sub_(config.lr * table.grad / (state.row_sums[name].sqrt() + EPSILON).unsqueeze(1))
        lr = config.lr if config.relation_lr is None else config.relation_lr
        for path, value in state.params.items():
            if value.grad is not None:
                state.param_sums[path] += value.grad.square()
                value.sub_(lr * value.grad / (state.param_sums[path].sqrt() + EPSILON))
        for part in (state.embeddings, state.params):
            for name in part:
                part[name] = part[name].detach()
