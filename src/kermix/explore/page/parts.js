"use strict";
// Check, Odd rows and Watch: each asks the library again until its answer is there.
(() => {
  const { element } = kermix;
  const WAIT = 1000;

  // Asks until there is an answer, while the part is shown.
  const until = async (place, shown, ask, draw, say) => {
    for (;;) {
      if (shown()) {
        try {
          const found = await ask();
          if (found.state === "done") { draw(found); say(""); return; }
          if (found.state === "failed") { kermix.replace(place, element("p", {}, found.error)); return; }
          const rows = found.rows ? ` ${found.rows} rows are done.` : "";
          kermix.replace(place, element("p", { role: "status" }, `Working on it.${rows}`));
        } catch (error) { say(error.message); }
      }
      await new Promise((done) => setTimeout(done, WAIT));
    }
  };

  kermix.checkPart = (place, source, shown, say) => {
    until(place, shown, source.check, (found) => {
      const s = found.scores, p = s.privacy, number = (v) => (v === null || v === undefined ? "not known" : Number(v.toPrecision(4)));
      const rows = [
        [s.density_name, `${number(s.log_density)} nats a row (${s.references.map(([n, v]) => `${n}: ${number(v)}`).join("; ")})`],
        ["told apart from data", found.told_apart || "too few rows to tell"],
        ["exact copies of training rows", `${kermix.percent(s.copies)} of the samples${s.copies_held == null ? "" : ` (${kermix.percent(s.copies_held)} of held-out rows)`}`],
        ["distance to the closest training row", `median ${number(p.samples[0])}, 5 % quantile ${number(p.samples[1])}${p.held_out ? ` (held-out rows: ${number(p.held_out[0])} and ${number(p.held_out[1])})` : ""}`],
      ];
      const cards = found.columns.map((column) => {
        const words = `${column.name}: difference ${column.difference.toFixed(3)}`;
        const gap = column.data_missing === undefined ? "" : `; missing ${kermix.percent(column.data_missing)} and ${kermix.percent(column.samples_missing)}`;
        const box = element("section", { class: "card", "aria-label": words }, element("h3", {}, ...kermix.breaks(column.name)),
          kermix.chart(column.chart, words),
          element("p", { class: "small quiet" }, `difference ${column.difference.toFixed(3)}${gap}`));
        box.dataset.column = column.name;
        return box;
      });
      const pairs = found.pairs.map((pair) => {
        const words = `${pair.first} and ${pair.second}: difference ${pair.difference.toFixed(3)}`;
        return element("section", { class: "card", "aria-label": words }, element("h3", {}, ...kermix.breaks(`${pair.first} with ${pair.second}`)),
          kermix.chart(pair.chart, words),
          element("p", { class: "small quiet" }, `difference ${pair.difference.toFixed(3)}`));
      });
      kermix.replace(place,
        element("p", {}, `${found.samples.toLocaleString("en")} samples against ${found.rows.toLocaleString("en")} rows. Differences are total variation distances: 0 if equal, 1 if nothing is in common; if samples were like the data, pairs would differ by ${s.pair_floor.toFixed(3)} on average, by chance.`),
        kermix.table("Scores", ["score", "value"], rows, (text) => text, true),
        element("h2", {}, "Columns, the most different first"), kermix.legend("data", "samples"), element("div", { class: "cards" }, ...cards),
        element("h2", {}, "Pairs, the most different first"), kermix.legend("data", "samples"),
        element("p", {}, "Each cell has the color of the set with more rows there; pale cells are shared, blank ones nearly empty."), element("div", { class: "cards wide" }, ...pairs));
      place.dataset.done = "yes";
    }, say);
  };

  kermix.outliersPart = (place, source, shown, open, say) => {
    until(place, shown, source.outliers, (found) => {
      const names = found.names;
      const body = found.rows.map((row) => {
        const reasons = row.reasons.length ? row.reasons.map((reason) =>
          `${reason.column} is ${kermix.shown(row.values[reason.column])}, and ${kermix.shown(reason.expected)} was expected (${reason.nats === null ? "never seen" : `${reason.nats.toFixed(1)} nats`})`)
          : ["no single column: the combination"];
        const whole = element("details", {}, element("summary", {}, "the whole row"), names.map((name) => `${name}: ${kermix.shown(row.values[name])}`).join(", "));
        return [element("button", { type: "button", class: "link", "aria-label": `Row ${row.row}: load into Ask`, onclick: () => open(new Map(Object.entries(row.values))) }, `row ${row.row}`),
          row.log_density === null ? "none" : row.log_density.toFixed(2), element("div", {}, element("ul", {}, ...reasons.map((reason) => element("li", {}, reason))), whole)];
      });
      kermix.replace(place,
        element("p", {}, `The least likely of ${found.of.toLocaleString("en")} rows; the median log-density is ${found.median === null ? "not known" : found.median.toFixed(2)}. Each reason says by how many nats the cell is less likely, given the rest of its row, than is usual for cells of its column.`),
        kermix.table("Odd rows, the oddest first; open one to load it into Ask", ["row", "log-density", "because"], body, (value) => value, true));
      place.dataset.done = "yes";
    }, say);
  };

  kermix.watchPart = (place, source, shown, ready, say) => {
    const lead = element("p", { role: "status" }), bar = element("progress", { max: 1, value: 0, "aria-label": "Steps" });
    const stop = element("button", { type: "button", id: "keep", onclick: async () => {
      stop.disabled = true;
      try { await source.keep(); say(""); } catch (error) { say(error.message); stop.disabled = false; }
    } }, "Stop and keep");
    const curve = element("div", { class: "curve" }), samples = element("div", {});
    place.append(lead, bar, element("div", { class: "bar" }, stop), curve, samples);
    let seen = "";
    const draw = (found) => {
      const last = found.history[found.history.length - 1], step = last ? last.step : 0;
      const words = { training: `In training: step ${step} of ${found.total}.`, keeping: "Stopping: samples and report are being written.",
        ready: `Done${last ? `, after ${step} steps` : ""}.`, failed: `Training failed: ${found.error}`, stopped: "Training was stopped." };
      lead.textContent = words[found.state];
      bar.max = found.total; bar.value = found.state === "ready" ? found.total : step;
      stop.hidden = !(found.watched && found.state === "training");
      stop.disabled = !last;
      const now = JSON.stringify([found.history.length, found.samples ? found.samples.rows : 0]);
      place.dataset.reports = found.history.length;
      if (now === seen) return;  // nothing is drawn again that is there already
      seen = now;
      if (found.history.length) {
        kermix.replace(curve, element("h2", {}, "Loss"),
          kermix.chart(found.chart, `Held-out loss ${last.metric}, after ${step} steps`),
          element("p", { class: "small quiet" }, `After ${step} steps: ${last.loss === null ? "no loss" : `loss ${last.loss.toFixed(3)}`}${last.metric === null ? "" : `, held-out rows ${last.metric.toFixed(3)}`}: negative log-densities in nats, less is better.`));
      }
      const drawn = found.samples;
      if (drawn && drawn.columns) {
        const cards = drawn.columns.map((column) => element("section", { class: "card", "aria-label": column.name }, element("h3", {}, ...kermix.breaks(column.name)),
          kermix.chart(column.chart, `${column.name}: data and samples`)));
        kermix.replace(samples, element("h2", {}, "Samples of the best model so far"), kermix.legend("data", "samples"),
          element("div", { class: "cards" }, ...cards), kermix.table("Ten samples", drawn.names, drawn.rows));
      }
    };
    (async () => {
      for (;;) {
        let state = "";
        try {
          const found = await source.watch();
          state = found.state;
          if (shown()) draw(found);
          if (state === "ready") { draw(found); ready(); return; }
          if (state === "failed" || state === "stopped") { draw(found); return; }
        } catch (error) { say(error.message); }
        await new Promise((done) => setTimeout(done, WAIT));
      }
    })();
  };
})();
