"use strict";
// A mixture of Gaussians in the page itself: the closed forms of `kermix.mixtures.conditionals`,
// for those who have the file and no Python.
kermix.source = (() => {
  const told = JSON.parse(document.getElementById("model").textContent);
  const { weights, means, covariances } = told.mixture;
  const full = told.mixture.kind === "full";
  const columns = told.columns, names = columns.map((column) => column.name);
  const covariance = (k, i, j) => (full ? covariances[k][i][j] : i === j ? covariances[k][i] : 0);

  // The Cholesky factor of a component's covariance, its coordinates in some order.
  const factor = (k, order) => {
    const rows = [];
    order.forEach((i, r) => {
      const row = new Float64Array(r + 1);
      for (let c = 0; c <= r; c += 1) {
        let sum = covariance(k, i, order[c]);
        for (let m = 0; m < c; m += 1) sum -= row[m] * (c < r ? rows[c][m] : row[m]);
        row[c] = c < r ? sum / rows[c][c] : Math.sqrt(Math.max(sum, 1e-15 * covariance(k, i, i)));
      }
      rows.push(row);
    });
    return rows;
  };

  const solved = (rows, gaps) => gaps.reduce((z, gap, r) => {
    let sum = gap;
    for (let m = 0; m < r; m += 1) sum -= rows[r][m] * z[m];
    return [...z, sum / rows[r][r]];
  }, []);

  const softmax = (logs) => {
    const most = Math.max(...logs), parts = logs.map((v) => Math.exp(v - most));
    const sum = parts.reduce((a, b) => a + b, 0);
    return parts.map((v) => v / sum);
  };

  // Weights of the components given the coordinates that are seen, and what a draw needs.
  const given = (seen, values) => {
    const found = weights.map((weight, k) => {
      const rows = factor(k, seen), z = solved(rows, values.map((v, r) => v - means[k][seen[r]]));
      const log = Math.log(weight) - rows.reduce((sum, row, r) => sum + Math.log(row[r]), 0) - z.reduce((sum, v) => sum + v * v, 0) / 2;
      return { rows, z, log };
    });
    return { found, weights: softmax(found.map((part) => part.log)) };
  };

  // One coordinate, given those that are seen: a mixture in one dimension.
  const along = (condition, seen, target) => condition.found.map(({ rows, z }, k) => {
    const v = solved(rows, seen.map((i) => covariance(k, i, target)));
    const own = covariance(k, target, target);
    const variance = own - v.reduce((sum, a) => sum + a * a, 0);
    return { weight: condition.weights[k], mean: means[k][target] + v.reduce((sum, a, r) => sum + a * z[r], 0), scale: Math.sqrt(Math.max(variance, 1e-15 * own)) };
  });

  // The normal distribution function, by its power series about 0.
  const normal = (x) => {
    if (x < -8) return 0;
    if (x > 8) return 1;
    let sum = x, term = x, last = 0;
    for (let n = 3; sum !== last; n += 2) { last = sum; term *= x * x / n; sum += term; }
    return 0.5 + sum * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
  };

  const upto = (parts, x) => parts.reduce((sum, part) => sum + part.weight * normal((x - part.mean) / part.scale), 0);

  const quantile = (parts, share) => {
    let low = Math.min(...parts.map((part) => part.mean - 9 * part.scale)), high = Math.max(...parts.map((part) => part.mean + 9 * part.scale));
    for (let n = 0; n < 100; n += 1) {
      const middle = (low + high) / 2;
      if (upto(parts, middle) >= share) high = middle; else low = middle;
    }
    return high;
  };

  // A number as the column has it: rounded, from its origin, which may have more digits than a number.
  const written = (column, number) => {
    if (column.decimals === null) return String(number + Number(column.origin));
    // Numbers too large to have decimals stay as they are.
    const text = Math.abs(number) < 1e15 ? number.toFixed(Math.max(0, Math.min(column.decimals, 20))) : String(number);
    return column.origin === "0" ? String(Number(text)) : String(BigInt(Math.round(Number(text))) + BigInt(column.origin));
  };

  const answered = (column, parts) => {
    const places = [0, ...column.edges.slice(1, -1).map((edge) => upto(parts, edge)), 1];
    const [low, middle, high] = [0.05, 0.5, 0.95].map((share) => written(column, quantile(parts, share)));
    return { shares: places.slice(1).map((value, k) => Math.max(0, value - places[k])), low, middle, high };
  };

  // What is set, as coordinates and their numbers; refused by name as the library does.
  const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;
  const read = (values) => {
    const set = Object.entries(values).map(([name, text]) => {
      const i = names.indexOf(name);
      if (i < 0) throw new Error(`given ${name}: there is no column ${name}.`);
      if (text === null || !NUMBER.test(text) || !Number.isFinite(Number(text))) throw new Error(`given ${name}: '${text}' is not a number.`);
      const { origin, whole } = columns[i];
      const exact = origin !== "0" && /^-?\d+$/.test(text);
      const number = exact ? Number(BigInt(text) - BigInt(origin)) : Number(text) - Number(origin);
      if (weights.some((_, k) => Math.abs(number - means[k][i]) > told.farthest * Math.sqrt(covariance(k, i, i)))) {
        throw new Error(`given: ${name}=${text} is farther than ${told.farthest.toExponential(0)} standard deviations from a component of the ${told.model}, which has no answer there.`);
      }
      // Written back as it was given, where the column can hold it.
      const kept = exact ? text : origin !== "0" || (whole && !Number.isInteger(number)) ? null : String(Number(text));
      return [i, number, kept];
    }).sort((a, b) => a[0] - b[0]);
    return { seen: set.map(([i]) => i), values: set.map(([, value]) => value), kept: new Map(set.map(([i, , kept]) => [i, kept])) };
  };

  const likely = ({ seen, values }) => {
    const rest = names.map((_, i) => i).filter((i) => !seen.includes(i)), every = names.map((_, i) => i);
    const condition = given(seen, values);
    let best = null;
    weights.forEach((_, k) => {
      const point = new Array(names.length);
      seen.forEach((i, r) => { point[i] = values[r]; });
      const { rows, z } = condition.found[k];
      rest.forEach((i) => {
        const v = solved(rows, seen.map((j) => covariance(k, j, i)));
        point[i] = means[k][i] + v.reduce((sum, a, r) => sum + a * z[r], 0);
      });
      const logs = weights.map((weight, other) => {
        const own = whole[other], y = solved(own, every.map((i) => point[i] - means[other][i]));
        return Math.log(weight) - own.reduce((sum, row, r) => sum + Math.log(row[r]), 0) - y.reduce((sum, v) => sum + v * v, 0) / 2;
      });
      const most = Math.max(...logs), density = most + Math.log(logs.reduce((sum, log) => sum + Math.exp(log - most), 0));
      if (best === null || density > best.density) best = { density, point };
    });
    return best.point;
  };

  const whole = weights.map((_, k) => factor(k, names.map((_name, i) => i)));

  // A row as texts, in the order of the table.
  const texts = (point, kept) => told.order.map((name) => {
    const i = names.indexOf(name);
    return i < 0 ? told.constants[name] : kept.get(i) ?? written(columns[i], point[i]);
  });

  // By name; to assign to one called __proto__ would do something else.
  const named = (keys, cells) => Object.fromEntries(keys.map((key, k) => [key, cells[k]]));

  // Random numbers with a seed: a counter whose bits are mixed.
  const source = (seed) => {
    let state = (seed >>> 0) ^ 0x9e3779b9;
    const uniform = () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let bits = Math.imul(state ^ (state >>> 15), state | 1);
      bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
      return ((bits ^ (bits >>> 14)) >>> 0) / 4294967296;
    };
    return { uniform, noise: () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()) };
  };

  const drawn = (values, n, seed) => {
    if (!Number.isInteger(n) || n < 1 || n > 100000) throw new Error(`n=${n}: a whole number from 1 to 100,000.`);
    const what = read(values), condition = given(what.seen, what.values), random = source(seed);
    const rest = names.map((_, i) => i).filter((i) => !what.seen.includes(i)), order = [...what.seen, ...rest];
    const factors = new Map(), rows = [];
    for (let r = 0; r < n; r += 1) {
      let left = random.uniform(), k = 0;
      while (k < weights.length - 1 && left >= condition.weights[k]) { left -= condition.weights[k]; k += 1; }
      if (!factors.has(k)) factors.set(k, factor(k, order));
      const own = factors.get(k), z = [...condition.found[k].z, ...rest.map(() => random.noise())];
      const point = new Array(names.length);
      order.forEach((i, at) => {
        point[i] = at < what.seen.length ? what.values[at] : means[k][i] + own[at].reduce((sum, a, m) => sum + a * z[m], 0);
      });
      rows.push(texts(point, what.kept));
    }
    return { names: told.order, rows };
  };

  // With a mark before text that a spreadsheet would take for a formula, where that is asked for.
  const escaped = (text) => (/^[=+\-@\t\r]/.test(text) && !NUMBER.test(text) ? `'${text}` : text);
  const cell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  return {
    state: async () => ({ name: told.name, state: "ready", rows: told.rows, model: told.model }),
    model: async () => ({ columns: columns.map((column) => column.described), left_out: told.left_out }),
    ask: async (values) => {
      const what = read(values), condition = given(what.seen, what.values);
      return named(names, columns.map((column, j) => {
        const at = what.seen.indexOf(j);
        if (at < 0) return answered(column, along(condition, what.seen, j));
        // Its own value does not count for a column that is set.
        const seen = what.seen.filter((i) => i !== j), others = what.values.filter((_, r) => r !== at);
        const low = column.edges[0], high = column.edges[column.edges.length - 1];
        const place = Math.min(1, Math.max(0, (what.values[at] - low) / (high - low)));
        return { ...answered(column, along(given(seen, others), seen, j)), place };
      }));
    },
    likely: async (values) => {
      const what = read(values);
      return named(told.order, texts(likely(what), what.kept));
    },
    draws: async (values, n, seed) => drawn(values, n, seed),
    file: async (values, n, seed, safe) => {
      const found = drawn(values, n, seed);
      const lines = [found.names, ...found.rows].map((row) => row.map((text) => cell(safe ? escaped(text) : text)).join(","));
      return new Blob([`${lines.join("\n")}\n`], { type: "text/csv" });
    },
  };
})();
