"use strict";
// Ask: a control for each column; every other one given those that are set, beside itself alone.
kermix.askPart = (place, source, model, say) => {
  const { element } = kermix;
  const given = new Map();
  const cards = new Map();
  let asking = null, again = false, latest = 0;

  const clear = element("button", { type: "button", id: "clear", onclick: () => load(new Map()) }, "Clear all");
  const count = element("p", { class: "quiet", id: "count" });

  const about = (column, answer) => {
    const gap = answer.missing === undefined ? "" : `, missing ${kermix.percent(answer.missing)}`;
    if (answer.low !== undefined) {
      const [middle, low, high] = [answer.middle, answer.low, answer.high].map(column.kind === "number" ? kermix.about : kermix.shown);
      return `about ${middle}; nine in ten between ${low} and ${high}${gap}`;
    }
    const names = column.bars, k = names.indexOf(answer.middle);
    const share = k < 0 ? "" : `, ${kermix.percent(answer.shares[k])}`;
    return `most likely ${kermix.shown(answer.middle)}${share}${gap}`;
  };

  const draw = (column, answer, set) => {
    const card = cards.get(column.name);
    const told = about(column, answer);
    const words = `${column.name}: ${set ? "given the others that are set, " : ""}${told}`;
    kermix.replace(card.chart, kermix.chart(answer.chart, words));
    card.told.textContent = told;
    card.box.classList.toggle("set", set);
    card.box.dataset.middle = answer.middle === null ? "" : answer.middle;
    card.box.dataset.shares = JSON.stringify(answer.shares);
  };

  // After a question without an answer: nothing of the one before stays.
  const drawNothing = () => {
    for (const column of model.columns) {
      const card = cards.get(column.name);
      kermix.replace(card.chart, kermix.chart(column.chart, `${column.name}: no answer`));
      card.told.textContent = "no answer";
      card.box.dataset.middle = card.box.dataset.shares = "";
    }
    kermix.replace(likely);
  };

  const ask = async () => {
    kermix.replace(drawn);  // rows of another question
    count.textContent = given.size ? `${given.size} of ${model.columns.length} columns are set.` : "Nothing is set: columns are shown for all rows.";
    if (asking) { again = true; return; }
    asking = true;
    const number = ++latest, values = Object.fromEntries(given);
    for (const card of cards.values()) card.box.classList.add("waiting");
    try {
      const answer = await source.ask(values);
      for (const column of model.columns) draw(column, answer[column.name], Object.hasOwn(values, column.name));
      say("");
    } catch (error) {
      place.dataset.failed = number;
      drawNothing();
      say(error.message);
    } finally {
      asking = null;
      for (const card of cards.values()) card.box.classList.remove("waiting");
      place.dataset.answers = number;
      place.dataset.asked = JSON.stringify(values);
      if (again) { again = false; ask(); } else fill(values, number);
    }
  };

  // The most likely row takes as long as all columns together, so it comes after them.
  const fill = async (values, number) => {
    if (place.dataset.failed === String(number)) return;
    try {
      const row = await source.likely(values);
      if (number !== latest) return;
      const names = Object.keys(row);
      kermix.replace(likely, kermix.table("The most likely row, given what is set", names, [names.map((name) => row[name])]));
      place.dataset.filled = JSON.stringify(values);
    } catch (error) {
      say(error.message);
    }
  };

  const set = (name, value) => {
    if (value === undefined) given.delete(name); else given.set(name, value);
    cards.get(name).show(value);
    cards.get(name).box.classList.toggle("set", given.has(name));
    ask();
  };

  const load = (values) => {
    given.clear();
    for (const column of model.columns) {
      const value = values.get(column.name);
      if (value !== undefined && (value !== null || column.gap)) given.set(column.name, value);
      cards.get(column.name).show(given.get(column.name));
    }
    ask();
  };

  const choice = (column, label) => {
    const select = element("select", { "aria-label": label });
    const options = [["not set", undefined], ...column.values.map((value) => [kermix.shown(value), value])];
    if (column.gap) options.push(["(missing)", null]);
    options.forEach(([text], k) => select.append(element("option", { value: k }, text)));
    select.addEventListener("change", () => set(column.name, options[select.selectedIndex][1]));
    return { controls: [element("div", { class: "controls" }, select)],
      show: (value) => { select.selectedIndex = Math.max(0, options.findIndex((option) => option[1] === value)); } };
  };

  const number = (column, label) => {
    const positions = column.positions, last = positions.length - 1;
    const text = element("input", { type: "text", "aria-label": label, placeholder: "not set", autocomplete: "off", spellcheck: "false" });
    const slider = element("input", { type: "range", min: 0, max: last, step: 1, "aria-label": `${label}, by position` });
    const off = element("button", { type: "button", "aria-label": `${column.name}: do not set`, onclick: () => set(column.name, undefined) }, "not set");
    const gap = column.gap ? element("button", { type: "button", "aria-label": `${column.name}: set to missing`, onclick: () => set(column.name, null) }, "missing") : null;
    slider.addEventListener("input", () => set(column.name, positions[Number(slider.value)]));
    const typed = () => set(column.name, text.value.trim() === "" ? undefined : text.value.trim());
    text.addEventListener("change", typed);
    const nearest = (value) => {
      const at = positions.indexOf(value);
      if (at >= 0 || column.kind === "time") return Math.max(at, 0);
      let best = 0;
      positions.forEach((p, k) => { if (Math.abs(p - value) < Math.abs(positions[best] - value)) best = k; });
      return best;
    };
    return { controls: [element("div", { class: "controls" }, text, off, gap), slider],
      show: (value) => {
        text.value = value === undefined ? "" : value === null ? "(missing)" : value;
        text.readOnly = value === null;
        slider.classList.toggle("unset", typeof value !== "string");
        slider.value = typeof value === "string" ? nearest(value) : Math.round(last / 2);
        slider.setAttribute("aria-valuetext", value === undefined ? "not set" : kermix.shown(value));
        off.disabled = value === undefined;
      } };
  };

  const grid = element("div", { class: "cards" });
  model.columns.forEach((column, k) => {
    const label = `Set ${column.name}`;
    const { controls, show } = column.values ? choice(column, label) : number(column, label);
    const chart = element("div", {}), told = element("p", { class: "small quiet" });
    const box = element("section", { class: "card", "aria-labelledby": `column-${k}` },
      element("h3", { id: `column-${k}`, title: column.details }, ...kermix.breaks(column.name)), ...controls, chart, told);
    box.dataset.column = column.name;
    cards.set(column.name, { box, chart, told, show });
    show(undefined);
    grid.append(box);
  });

  const likely = element("div", { id: "likely" });
  const drawn = element("div", { id: "drawn" });
  const rows = element("input", { type: "number", id: "rows", min: 1, max: 100000, value: 1000 });
  const seed = element("input", { type: "number", id: "seed", min: 0, max: 2147483647, value: 0 });
  const safe = element("input", { type: "checkbox", id: "safe" });
  const wanted = () => ({ given: Object.fromEntries(given), n: Math.trunc(Number(rows.value)), seed: Math.trunc(Number(seed.value)) });
  const tried = (work) => async () => { try { await work(); say(""); } catch (error) { say(error.message); } };
  const show = element("button", { type: "button", id: "draw", onclick: tried(async () => {
    const { given: values, seed: number_ } = wanted();
    const found = await source.draws(values, 10, number_);
    kermix.replace(drawn, kermix.table("Ten rows drawn given what is set", found.names, found.rows));
  }) }, "Show ten");
  const save = element("button", { type: "button", id: "download", onclick: tried(async () => {
    const { given: values, n, seed: number_ } = wanted();
    const link = element("a", { href: URL.createObjectURL(await source.file(values, n, number_, safe.checked)), download: "draws.csv" });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }) }, "Download as CSV");

  place.append(
    element("div", { class: "bar" }, clear, count),
    kermix.legend("given what is set", "given nothing"),
    grid,
    element("h2", {}, "The most likely row"), likely,
    element("h2", {}, "Draws"),
    element("div", { class: "bar" },
      element("label", { for: "rows" }, "rows"), rows, element("label", { for: "seed" }, "seed"), seed, show, save,
      element("label", { for: "safe", title: "Adds a mark before text that a spreadsheet would take for a formula, like kermix sample --spreadsheet-safe" }, safe, " escape formulas, for spreadsheets")),
    drawn);
  if (model.order_spread) {
    place.append(element("p", { class: "small quiet", id: "orders" }, `Bars and draws may differ: answers of this network depend on the order of columns by about ${model.order_spread.toPrecision(2)} nats a row, and draws go column by column.`));
  }
  if (model.left_out.length) {
    place.append(element("p", { class: "small quiet" }, `Left out: ${model.left_out.map((c) => `${c.name} (${c.kind})`).join(", ")}.`));
  }
  ask();
  return { load };
};
