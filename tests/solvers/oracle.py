"""The optimum by HiGHS: the linear program of choices and joint choices, choices whole."""

import math

import highspy
import numpy as np


def optimum(problem, seconds=60):
    """(status, choice): "optimal", "infeasible" or "unknown"."""
    cost, upper, rows = [], [], []  # rows: (low, high, {column: factor})
    node_at = []
    for costs in problem.nodes:
        node_at.append(len(cost))
        cost += [x if math.isfinite(x) else 0 for x in costs]
        upper += [float(math.isfinite(x)) for x in costs]
        first = node_at[-1]
        rows.append((1, 1, {first + s: 1.0 for s in range(len(costs))}))
    whole = len(cost)
    factor_at = []
    for nodes, costs in problem.factors:
        first = len(cost)
        factor_at.append(first)
        cost += [x if math.isfinite(x) else 0 for x in costs]
        upper += [float(math.isfinite(x)) for x in costs]
        sizes = problem.sizes(nodes)
        for place, v in enumerate(nodes):
            stride = math.prod(sizes[place + 1 :])
            for s in range(sizes[place]):
                row = {
                    first + i: 1.0 for i in range(len(costs)) if i // stride % sizes[place] == s
                }
                row[node_at[v] + s] = -1.0
                rows.append((0, 0, row))
    for row in problem.rows:
        terms = {}
        for v, table in row["nodes"].items():
            for s, x in enumerate(table):
                terms[node_at[v] + s] = float(x)
        for f, table in row["factors"].items():
            for i, x in enumerate(table):
                terms[factor_at[f] + i] = float(x)
        rows.append((-highspy.kHighsInf, row["limit"] - row["constant"], terms))
    return solve(problem, cost, upper, whole, rows, node_at, seconds)


def solve(problem, cost, upper, whole, rows, node_at, seconds):
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(rows)
    lp.col_cost_ = np.array(cost, dtype=float)
    lp.col_lower_ = np.zeros(len(cost))
    lp.col_upper_ = np.array(upper)
    lp.row_lower_ = np.array([row[0] for row in rows], dtype=float)
    lp.row_upper_ = np.array([row[1] for row in rows], dtype=float)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0] + [len(row[2]) for row in rows])
    lp.a_matrix_.index_ = np.array([j for row in rows for j in row[2]], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([x for row in rows for x in row[2].values()])
    lp.integrality_ = [
        highspy.HighsVarType.kInteger if j < whole else highspy.HighsVarType.kContinuous
        for j in range(len(cost))
    ]
    solver = highspy.Highs()
    solver.silent()
    for option, value in (
        ("threads", 1),
        ("time_limit", float(seconds)),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-9),
        ("mip_feasibility_tolerance", 1e-8),
        ("primal_feasibility_tolerance", 1e-9),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return "infeasible", None
    if status != highspy.HighsModelStatus.kOptimal:
        return "unknown", None
    values = solver.getSolution().col_value
    choice = [
        max(range(len(costs)), key=lambda s, at=at: values[at + s])
        for costs, at in zip(problem.nodes, node_at)
    ]
    return "optimal", choice
