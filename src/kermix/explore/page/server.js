"use strict";
// The library behind the page: all answers come from the process that kermix explore has started.
kermix.source = (() => {
  const told = async (response) => {
    if (response.ok) return response;
    let text = `The server answers ${response.status}.`;
    try { text = (await response.json()).error || text; } catch { /* no JSON */ }
    throw new Error(text);
  };
  const reached = async (path, options) => {
    let response;
    try { response = await fetch(`api/${path}`, options); } catch { throw new Error("kermix explore is not running any more."); }
    return told(response);
  };
  const get = async (path) => (await reached(path)).json();
  const post = (path, body) => reached(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  return {
    state: () => get("state"), model: () => get("model"), check: () => get("check"), outliers: () => get("outliers"), watch: () => get("watch"),
    keep: async () => (await post("keep", {})).json(),
    ask: async (given) => (await post("ask", { given })).json(),
    likely: async (given) => (await post("likely", { given })).json(),
    draws: async (given, n, seed) => (await post("draws", { given, n, seed })).json(),
    file: async (given, n, seed, safe) => {
      const response = await post("draws.csv", { given, n, seed, safe });
      try { return await response.blob(); } catch { throw new Error("kermix explore ended before all rows were drawn."); }
    },
  };
})();
