"use strict";
// The tabs of the page, and what is in them when.
(async () => {
  const { element, source } = kermix;
  const tabs = document.getElementById("tabs"), main = document.getElementById("parts"), alert = document.getElementById("alert");
  const live = document.getElementById("live");
  const say = (text) => { alert.hidden = !text; if (alert.textContent !== text) alert.textContent = text; };
  const parts = new Map();
  let current = null;

  const show = (name, focus = false) => {
    if (parts.get(name).tab.disabled) return;
    current = name;
    for (const [key, { tab, panel }] of parts) {
      const chosen = key === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      panel.hidden = !chosen;
      if (chosen && focus) tab.focus();
    }
    live.textContent = name;
  };

  const add = (name, id, disabled = false) => {
    const panel = element("section", { id, role: "tabpanel", "aria-labelledby": `${id}-tab`, tabindex: "0", hidden: true });
    const tab = element("button", { type: "button", role: "tab", id: `${id}-tab`, "aria-controls": id, "aria-selected": "false", onclick: () => show(name) }, name);
    tab.disabled = disabled;
    tabs.append(tab);
    main.append(panel);
    parts.set(name, { tab, panel, shown: () => current === name && !document.hidden });
    return panel;
  };

  tabs.addEventListener("keydown", (event) => {
    const names = [...parts.keys()].filter((name) => !parts.get(name).tab.disabled), at = names.indexOf(current);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(names[(to + names.length) % names.length], true);
  });

  const head = (state) => {
    document.title = `${state.name}: kermix explore`;
    document.getElementById("title").textContent = state.name;
    const rows = state.rows === undefined ? "" : `, ${state.rows.toLocaleString("en")} rows`;
    const words = { ready: "The model can be asked: set some columns, and see the others.", failed: "Training failed.", stopped: "Training was stopped." };
    document.getElementById("answer").textContent = words[state.state] || "The model is in training: watch it, and stop it when it is good enough.";
    document.getElementById("lead").textContent = `${state.model ? `A ${state.model}` : "A fit"}${rows}.`;
    document.getElementById("command").textContent = state.command;
  };

  const begin = async () => {
    const model = await source.model();
    for (const name of ["Ask", "Check", "Odd rows"]) parts.get(name).tab.disabled = false;
    const asked = kermix.askPart(parts.get("Ask").panel, source, model, say);
    kermix.checkPart(parts.get("Check").panel, source, parts.get("Check").shown, say);
    kermix.outliersPart(parts.get("Odd rows").panel, source, parts.get("Odd rows").shown, (row) => { asked.load(row); show("Ask", true); }, say);
  };

  try {
    const state = await source.state();
    head(state);
    const ready = state.state === "ready";
    add("Ask", "ask", !ready);
    add("Check", "check", !ready);
    add("Odd rows", "outliers", !ready);
    const panel = add("Watch", "watch");
    const watched = { ...source, watch: async () => { const found = await source.watch(); head(found); return found; } };
    kermix.watchPart(panel, watched, () => parts.get("Watch").shown(), async () => {
      if (ready) return;
      head(await source.state());
      await begin();
      live.textContent = "Training is done: the model can be queried.";
    }, say);
    show(ready ? "Ask" : "Watch");
    if (ready) await begin();
  } catch (error) {
    say(error.message);
  }
})();
