#!/usr/bin/env python3
"""Prints stats_values.inc: what scipy and numpy say."""
import random

import numpy
from scipy import stats

print("/* Made by make_stats_values.py. */")
print("static const struct {\n    uint64_t k, n;\n    double confidence, low, high;\n} wilson[] = {")
for k, n in [(0, 1), (1, 1), (0, 25), (25, 25), (13, 25), (1, 500), (499, 500), (123456, 200000)]:
    for c in (0.8, 0.95, 0.999):
        i = stats.binomtest(k, n).proportion_ci(c, method="wilson")
        print(f"    {{{k}, {n}, {c}, {float(i.low)!r}, {float(i.high)!r}}},")
print("};\n\nstatic const struct {\n    double p, dof, t;\n} t_quantiles[] = {")
for dof in (1, 2, 3, 9, 24, 49, 499, 100000):
    for p in (0.0005, 0.025, 0.1, 0.4, 0.5, 0.9, 0.975, 0.9995):
        print(f"    {{{p}, {dof}, {float(stats.t.ppf(p, dof))!r}}},")
print("};\n\nstatic const struct {\n    double p, z;\n} normal_quantiles[] = {")
for p in (1e-12, 0.0005, 0.025, 0.3, 0.5, 0.84, 0.975, 0.9995):
    print(f"    {{{p}, {float(stats.norm.ppf(p))!r}}},")
print("};\n\nstatic const struct {\n    uint64_t first, second;\n    double p;\n} mcnemar[] = {")
for b, c in [(0, 0), (0, 1), (1, 1), (0, 5), (5, 0), (3, 10), (10, 12), (30, 61), (400, 520), (9000, 9400)]:
    p = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    print(f"    {{{b}, {c}, {float(p)!r}}},")
print("};\n")
r = random.Random(7)
values = [round(r.random(), 4) for _ in range(60)]
clusters = [i % 7 if i < 40 else 3 for i in range(60)]
print("static const double values[60] = {" + ", ".join(map(str, values)) + "};")
print("static const uint32_t clusters[60] = {" + ", ".join(map(str, clusters)) + "};")
mean = numpy.mean(values)
low, high = stats.t.interval(0.95, 59, loc=mean, scale=stats.sem(values))
print(f"static const struct stats_interval mean_of_values = {{{float(mean)!r}, {float(low)!r}, {float(high)!r}}};")
r = random.Random(11)
groups = [[v for v, k in zip(values, clusters) if k == i] for i in range(7)]
means = []
for _ in range(2000):
    drawn = [groups[r.randrange(7)] for _ in range(7)]
    means.append(sum(sum(g) for g in drawn) / sum(len(g) for g in drawn))
low, high = numpy.quantile(means, [0.025, 0.975])
print(f"static const struct stats_interval bootstrap_of_values = {{{float(mean)!r}, {float(low)!r}, {float(high)!r}}};")
