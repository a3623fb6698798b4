"use strict";
// What the parts of the page share: elements with text, never markup but charts of the library.
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

// A number to so many digits, without an exponent where that is short.
kermix.short = (number, digits) => {
  const cut = Number(number.toPrecision(digits));
  return Math.abs(cut) < 1e9 ? String(cut) : cut.toExponential();
};

// About what number a text stands for; other texts as they are shown.
kermix.about = (text) => {
  if (text === null || text === undefined || !/^-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text)) return kermix.shown(text);
  const cut = kermix.short(Number(text), 4);
  return Math.abs(cut) < 10000 || cut.includes("e") ? cut : Number(cut).toLocaleString("en");
};

// A name whose parts may stand in several lines.
kermix.breaks = (name) => (name.length > 20 ? name.split(/(?<=[_/])(?=\w)/) : [name])
  .flatMap((part, k) => (k ? [document.createElement("wbr"), part] : [part]));

// A number of many digits is cut for reading; whatever else a cell holds is shown as it is.
kermix.shown = (text) => {
  if (text === null || text === undefined) return "(missing)";
  if (text.length > 9 && /^-?\d*\.\d+(e[-+]?\d+)?$/i.test(text)) return kermix.short(Number(text), 6);
  return text === "" ? "(empty)" : text;
};

// A chart that the library has drawn, and what those are told who cannot see it.
kermix.chart = (drawn, about) => {
  const chart = new DOMParser().parseFromString(drawn, "text/html").querySelector("svg");
  chart.setAttribute("aria-label", about);
  chart.querySelector("title").textContent = about;
  return chart;
};

kermix.legend = (one, two) => {
  const box = kermix.element("p", { class: "legend" });
  box.append(kermix.element("span", { class: "one", "aria-hidden": "true" }), one);
  if (two) box.append(kermix.element("span", { class: "two", "aria-hidden": "true" }), two);
  return box;
};

// A table of text; `cell` may make something else of a value.
// Sentences in cells are broken into lines, values are not.
kermix.table = (caption, names, rows, cell = (text) => kermix.shown(text), sentences = false) => {
  const { element } = kermix;
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, ...kermix.breaks(name))));
  const body = rows.map((row) => element("tr", {}, ...row.map((value, k) => element("td", {}, cell(value, k)))));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", { class: sentences ? "text" : null }, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body)));
};
