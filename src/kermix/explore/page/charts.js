"use strict";
// What the parts of the page share: elements with text, never markup, and charts as SVG.
const kermix = {};

kermix.element = (name, properties = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made && typeof value === "boolean") made[key] = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};

kermix.replace = (place, ...children) => { place.replaceChildren(...children); };

kermix.percent = (share) => {
  if (share > 0 && share < 0.001) return "<0.1 %";
  return `${Number((100 * share).toPrecision(share < 0.1 ? 2 : 3))} %`;
};

// A number of many digits is cut for reading; whatever else a cell holds is shown as it is.
kermix.shown = (text) => {
  if (text === null || text === undefined) return "(missing)";
  if (text.length > 9 && /^-?\d*\.\d+(e-?\d+)?$/i.test(text)) return String(Number(Number(text).toPrecision(6)));
  return text === "" ? "(empty)" : text;
};

kermix.short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

(() => {
  const SPACE = "http://www.w3.org/2000/svg";
  const WIDE = 260, TALL = 112, FLOOR = 92, TOP = 6, MOST_BARS = 8;

  const shape = (name, properties, text) => {
    const made = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const drawing = (wide, tall, about, shapes) => {
    const svg = shape("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": about });
    svg.append(...shapes);
    return svg;
  };

  // Shares of intervals: the first filled, the second as an outline over it.
  const area = (first, second, labels, place, about) => {
    const most = Math.max(...first, ...(second || []), 1e-9);
    const steps = (shares) => shares.map((share, k) => {
      const y = (FLOOR - (FLOOR - TOP) * share / most).toFixed(1);
      return `L${(WIDE * k / shares.length).toFixed(1)},${y} L${(WIDE * (k + 1) / shares.length).toFixed(1)},${y}`;
    }).join(" ");
    const shapes = [shape("path", { class: "one", d: `M0,${FLOOR} ${steps(first)} L${WIDE},${FLOOR} Z` })];
    if (second) shapes.push(shape("path", { class: "two", d: `M0,${FLOOR} ${steps(second)} L${WIDE},${FLOOR}` }));
    shapes.push(shape("line", { class: "axis", x1: 0, x2: WIDE, y1: FLOOR, y2: FLOOR }));
    if (typeof place === "number") {
      shapes.push(shape("line", { class: "mark", x1: place * WIDE, x2: place * WIDE, y1: 0, y2: FLOOR }));
    }
    labels.forEach((label, k) => shapes.push(shape("text", {
      x: WIDE * k / (labels.length - 1), y: FLOOR + 15,
      "text-anchor": k === 0 ? "start" : k === labels.length - 1 ? "end" : "middle",
    }, kermix.short(label, 14))));
    return drawing(WIDE, TALL, about, shapes);
  };

  // Shares of values, two bars each; of many values those that count most, and the rest together.
  const bars = (names, first, second, place, about) => {
    let order = names.map((_, k) => k);
    const counts = (k) => Math.max(first[k], second ? second[k] : 0) + (k === place ? 2 : 0);
    if (names.length > MOST_BARS) {
      order.sort((a, b) => counts(b) - counts(a) || a - b);
      order = order.slice(0, MOST_BARS - 1).sort((a, b) => a - b);
    }
    const rest = names.length - order.length;
    const rows = order.map((k) => ({ name: kermix.shown(names[k]), one: first[k], two: second ? second[k] : null, here: k === place }));
    if (rest) {
      const left = (shares) => Math.max(0, 1 - order.reduce((sum, k) => sum + shares[k], 0));
      rows.push({ name: `${rest} others`, one: first[0] === null ? null : left(first), two: second ? left(second) : null, here: false });
    }
    const most = Math.max(...rows.map((row) => Math.max(row.one, row.two || 0)), 1e-9);
    const left = 96, room = WIDE - left - 46, tall = 20, shapes = [];
    rows.forEach((row, k) => {
      const y = k * tall + 2;
      const label = shape("text", { x: left - 6, y: y + 12, "text-anchor": "end" }, kermix.short(row.name, 15));
      label.append(shape("title", {}, row.name));
      shapes.push(label, shape("rect", { class: "bar1", x: left, y, width: (room * row.one / most).toFixed(1), height: second ? 9 : 13 }));
      if (second) shapes.push(shape("rect", { class: "bar2", x: left, y: y + 10, width: (room * row.two / most).toFixed(1), height: 4 }));
      shapes.push(shape("text", { x: left + room * Math.max(row.one, row.two || 0) / most + 4, y: y + 11 }, row.one === null ? "" : kermix.percent(row.one)));
      if (row.here) shapes.push(shape("line", { class: "mark", x1: left - 2, x2: left - 2, y1: y - 1, y2: y + 15 }));
    });
    return drawing(WIDE, rows.length * tall + 4, about, shapes);
  };

  // A column: `one` filled and `two` as an outline, on the scale that the library made; `one` may be all null.
  kermix.chart = (scale, one, two, place, about) => (scale.bars
    ? bars(scale.bars, one, two, place, about)
    : area(one, two, scale.labels, place, about));

  // Joint shares of two columns as squares, the darker the more.
  kermix.squares = (pair, what, most, about) => {
    const table = pair[what], left = 74, size = (WIDE - left) / pair.across.length;
    const tall = Math.min(size, 24), shapes = [];
    table.forEach((line, r) => {
      const y = (table.length - 1 - r) * tall;
      const label = shape("text", { x: left - 5, y: y + tall / 2 + 4, "text-anchor": "end" }, kermix.short(kermix.shown(pair.down[r]), 12));
      label.append(shape("title", {}, pair.down[r]));
      shapes.push(label);
      line.forEach((share, c) => {
        const cell = shape("rect", { class: what === "data" ? "cell" : "cell2", x: left + c * size, y,
          width: size - 1, height: tall - 1, "fill-opacity": Math.sqrt(share / most).toFixed(3) });
        cell.append(shape("title", {}, `${pair.across[c]}, ${pair.down[r]}: ${kermix.percent(share)}`));
        shapes.push(cell);
      });
    });
    const low = table.length * tall + 12;
    shapes.push(shape("text", { x: left, y: low }, kermix.short(kermix.shown(pair.across[0]), 14)),
      shape("text", { x: WIDE, y: low, "text-anchor": "end" }, kermix.short(kermix.shown(pair.across[pair.across.length - 1]), 14)));
    return drawing(WIDE, low + 4, about, shapes);
  };

  // Lines over the steps of a training.
  kermix.lines = (rows, names, about) => {
    const wide = 560, tall = 180, floor = tall - 20, left = 46;
    const values = rows.flatMap((row) => names.map((name) => row[name])).filter((v) => v !== null && v !== undefined);
    const steps = rows.map((row) => row.step);
    const low = Math.min(...values), high = Math.max(...values), last = Math.max(...steps, 1);
    const x = (step) => left + (wide - left) * step / last;
    const y = (value) => floor - (floor - 8) * (value - low) / (high - low || 1);
    const shapes = [shape("line", { class: "axis", x1: left, x2: wide, y1: floor, y2: floor })];
    names.forEach((name, k) => {
      const points = rows.filter((row) => row[name] !== null && row[name] !== undefined)
        .map((row) => `${x(row.step).toFixed(1)},${y(row[name]).toFixed(1)}`).join(" ");
      shapes.push(shape("polyline", { class: k ? "two" : "first", points }));
    });
    for (const value of [low, high]) {
      shapes.push(shape("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, Number(value.toPrecision(4))));
    }
    shapes.push(shape("text", { x: left, y: tall - 4 }, "0"), shape("text", { x: wide, y: tall - 4, "text-anchor": "end" }, `step ${last}`));
    return drawing(wide, tall, about, shapes);
  };
})();

kermix.legend = (one, two) => {
  const box = kermix.element("p", { class: "legend" });
  box.append(kermix.element("span", { class: "swatch1", "aria-hidden": "true" }), one);
  if (two) box.append(kermix.element("span", { class: "swatch2", "aria-hidden": "true" }), two);
  return box;
};

// A table of text; `cell` may make something else of a value.
// Sentences in cells are broken into lines, values are not.
kermix.table = (caption, names, rows, cell = (text) => kermix.shown(text), sentences = false) => {
  const { element } = kermix;
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((row) => element("tr", {}, ...row.map((value, k) => element("td", {}, cell(value, k)))));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", { class: sentences ? "text" : null }, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body)));
};
