"use strict";
// Plots: each is a function of the state and the colours of the moment, drawn again whenever one of them changes.
const state = { measure: "rr", layer: 0, target: 0, repair: "0" };
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 760px)");
const at = (id) => document.getElementById(`plot-${id}`);
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const percent = (fraction) => `${+(100 * fraction).toFixed(4)} %`;
const style = (name) => DATA.styles[name] ?? { colour: "#8a8f98", mark: "circle" };
const DASHES = ["solid", "dash", "dot", "dashdot"];

function ink() {
  const css = getComputedStyle(document.documentElement);
  const read = (name) => css.getPropertyValue(name).trim();
  return { text: read("--text"), soft: read("--soft"), grid: read("--grid"), surface: read("--surface"), tint: read("--tint"), line: read("--line") };
}

// Names for an axis: without the parts all share in front, short in the middle, numbered where that makes them equal.
function layerLabels(names) {
  const parts = names.map((name) => name.split("."));
  let shared = 0;
  while (names.length > 1 && parts.every((part) => part.length > shared + 1 && part[shared] === parts[0][shared])) shared += 1;
  const half = narrow.matches ? 8 : 17;
  const short = parts.map((part) => part.slice(shared).join(".")).map((name) =>
    (name.length > 2 * half + 1 ? `${name.slice(0, half)}…${name.slice(-half)}` : name));
  const clear = new Set(short).size === short.length;
  return short.map((name, i) => plain(`${DATA.projections.includes(names[i]) ? "◆ " : ""}${clear ? "" : `${i + 1} `}${name}`));
}

function layout(extra) {
  const c = ink();
  const axis = { gridcolor: c.grid, zerolinecolor: c.grid, linecolor: c.line, automargin: true, fixedrange: true, ticks: "" };
  const { xaxis, yaxis, title, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, height: 360,
    font: { family: "system-ui, sans-serif", size: narrow.matches ? 11 : 12.5, color: c.text },
    title: { text: title, x: 0, xanchor: "left", xref: "container", yref: "container", y: 1, yanchor: "top", pad: { t: 6, l: 4 }, font: { size: narrow.matches ? 13 : 14.5 } },
    margin: { l: 12, r: 16, t: 40, b: 12 },
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, xanchor: "left", bgcolor: "rgba(0,0,0,0)" },
    hoverlabel: { bgcolor: c.surface, bordercolor: c.line, font: { color: c.text } },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

function draw(id, traces, extra, words) {
  const place = at(id);
  if (words !== undefined) {
    place.setAttribute("aria-label", words);
    document.getElementById(`words-${id}`).textContent = words.replaceAll(" %", "\u00a0%");
  }
  const whole = layout(extra);
  place.style.height = `${whole.height}px`; // plotly's own resizing forgets the height of its container
  Plotly.react(place, traces, whole, { displayModeBar: false, responsive: true });
}

const sparsityAxis = (values) => {
  const all = [...new Set(values)].sort((a, b) => a - b);
  const apart = (all.at(-1) - all[0]) * (narrow.matches ? 0.13 : 0.08); // closer labels would run into each other
  const kept = [];
  for (const s of all) if (!kept.length || s - kept.at(-1) >= apart) kept.push(s);
  return {
    title: { text: "sparsity, %", standoff: 8, font: { size: 12 } }, zeroline: false, tickangle: 0,
    tickmode: "array", tickvals: kept.map((s) => 100 * s), ticktext: kept.map((s) => `${+(100 * s).toFixed(3)}`),
  };
};

function drawHeat() {
  const heat = DATA.heat, measure = state.measure, c = ink();
  const flat = (name) => heat[name].flat().filter((value) => value !== null);
  const reach = Math.max(0.05, ...flat("rr").map((value) => Math.abs(value - 1)));
  const centred = measure === "rr";
  const middle = dark.matches ? "#2b3038" : "#f4f5f6";
  const scale = centred
    ? [[0, dark.matches ? "#4aa0e6" : "#1b62a5"], [0.5, middle], [1, dark.matches ? "#f0744f" : "#b5301c"]]
    : "Cividis";
  const rows = heat.layers.length;
  draw("heat", [{
    type: "heatmap", z: heat[measure], x: heat.sparsities.map((s) => `${+(100 * s).toFixed(4)}`), y: heat.layers, xgap: 2, ygap: 2,
    colorscale: scale, hoverongaps: false,
    zmin: centred ? 1 - reach : 0, zmax: centred ? 1 + reach : Math.max(...flat("raw"), ...flat("residual")),
    customdata: heat.layers.map((layer) => heat.sparsities.map(() => plain(layer))),
    hovertemplate: `%{customdata}<br>sparsity %{x} %<br>${measure} %{z:.4f}<extra></extra>`,
    colorbar: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", thickness: 10, len: 0.8, outlinewidth: 0, x: 0.5 },
  }], {
    title: plain(heat.titles[measure]), height: 150 + rows * 23,
    margin: { l: 12, r: 8, t: 40, b: 104 },
    xaxis: { type: "category", showgrid: false, title: { text: "sparsity, %", standoff: 8, font: { size: 12 } }, automargin: false, tickangle: 0, tickfont: { size: narrow.matches ? 9.5 : 12 } },
    yaxis: { autorange: "reversed", showgrid: false, tickmode: "array", tickvals: heat.layers, ticktext: layerLabels(heat.layers), tickfont: { color: c.text } },
  }, heat.words[measure]);
}

function drawCurves() {
  const heat = DATA.heat, i = state.layer, name = heat.layers[i], x = heat.sparsities.map((s) => 100 * s);
  const line = (measure, colour, dash, mark) => ({
    x, y: heat[measure][i], name: measure, mode: "lines+markers", connectgaps: true,
    line: { color: colour, dash, width: 2 }, marker: { symbol: mark, size: 8 },
    hovertemplate: `%{x} %<br>${measure} %{y:.4f}<extra></extra>`,
  });
  const say = (measure) => heat.sparsities.flatMap((s, k) => (heat[measure][i][k] === null ? [] : [[s, heat[measure][i][k]]]));
  const range = (measure) => {
    const points = say(measure), [first, last] = [points[0], points.at(-1)];
    return `${measure} goes from ${first[1].toPrecision(3)} at ${percent(first[0])} to ${last[1].toPrecision(3)} at ${percent(last[0])}`;
  };
  draw("damage", [line("raw", "#e69f00", "solid", "triangle-up"), line("residual", "#cc79a7", "dash", "triangle-down")], {
    title: "Damage, before and after repair", margin: { l: 12, r: 16, t: 40, b: 72 },
    xaxis: sparsityAxis(heat.sparsities), yaxis: { rangemode: "tozero", title: { text: "distance", font: { size: 12 } } },
  }, `${name}: ${range("raw")}; ${range("residual")}.`);
  const others = heat.layers.flatMap((_, k) => (k === i ? [] : heat.sparsities.map((s, p) => [100 * s, heat.rr[k][p]]).concat([[null, null]])));
  const c = ink();
  draw("share", [
    { x: others.map((p) => p[0]), y: others.map((p) => p[1]), name: "other layers", mode: "lines", line: { color: c.soft, width: 1 }, opacity: 0.35, hoverinfo: "skip" },
    { ...line("rr", "#d55e00", "solid", "circle"), name: layerLabels(heat.layers)[i] },
  ], {
    title: "rr: share of the damage left", margin: { l: 12, r: 16, t: 40, b: 72 },
    xaxis: sparsityAxis(heat.sparsities), yaxis: { title: { text: "rr", font: { size: 12 } } },
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: c.soft, dash: "dot", width: 1.5 } }],
  }, `${name}: ${range("rr")}. Grey: the other layers; dotted: 1, where repair mends nothing.`);
}

function drawAllocations() {
  const chosen = DATA.allocations[state.target], c = ink();
  const band = chosen.layers.flatMap((layer, i) => (DATA.projections.includes(layer)
    ? [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: i - 0.5, y1: i + 0.5, fillcolor: c.tint, line: { width: 0 }, layer: "below" }] : []));
  const rows = (key, series) => series.map((each) => ({
    x: each[key], y: chosen.layers.map((_, i) => i), name: plain(each.name), mode: "markers", customdata: chosen.layers.map(plain),
    marker: { color: style(each.name).colour, symbol: style(each.name).mark, size: 9, opacity: 0.9 },
    hovertemplate: `%{customdata}<br>${plain(each.name)} %{x:${key === "difference" ? "+" : ""}.4f}<extra></extra>`,
  }));
  const legend = 20 * Math.ceil(chosen.series.length / (narrow.matches ? 2 : 3));
  const room = (zeroline) => ({
    height: 76 + legend + chosen.layers.length * 24, shapes: band, margin: { l: 12, r: 16, t: 40, b: 36 + legend },
    yaxis: { range: [chosen.layers.length - 0.5, -0.5], tickmode: "array", tickvals: chosen.layers.map((_, i) => i), ticktext: layerLabels(chosen.layers), zeroline: false },
    xaxis: { automargin: false, zeroline, zerolinecolor: style("erk").colour, zerolinewidth: 2 },
  });
  draw("levels", rows("sparsity", chosen.series), { title: `Sparsity at ${chosen.label}`, ...room(false) }, chosen.words.sparsity);
  const others = chosen.series.filter((each) => each.difference !== null);
  at("difference").closest("figure").hidden = others.length === 0;
  if (others.length) draw("difference", rows("difference", others), { title: "Sparsity minus ERK's", ...room(true) }, chosen.words.difference);
}

function drawAccuracy() {
  const c = ink(), repairs = [...new Set(DATA.accuracy.map((each) => each.repair))], every = DATA.accuracy.flatMap((each) => each.x);
  const bars = (each) => ({ type: "data", array: each.error.map((e) => 100 * (e ?? 0)), thickness: 1.2, width: 4 });
  const dense = DATA.dense === null ? null : 100 * DATA.dense;
  const near = dense !== null && dense < 130 * Math.max(...DATA.accuracy.flatMap((each) => each.y)); // farther up, the line would flatten the rest
  const space = { height: 400, margin: { l: 12, r: 16, t: 40, b: narrow.matches ? 112 : 92 } };
  const shown = (repair) => state.repair === "all" || repairs[Number(state.repair)] === repair;
  const lines = DATA.accuracy.filter((each) => shown(each.repair));
  draw("accuracy", lines.map((each) => ({
    x: each.x.map((s) => 100 * s), y: each.y.map((y) => 100 * y), error_y: bars(each), name: plain(each.label), mode: "lines+markers",
    line: { color: style(each.rule).colour, dash: DASHES[repairs.indexOf(each.repair) % 4], width: 2 }, marker: { symbol: style(each.rule).mark, size: 8 },
    customdata: each.seeds, hovertemplate: `${plain(each.label)} at %{x} %<br>top-1 %{y:.2f} %<br>seeds %{customdata}<extra></extra>`,
  })), {
    title: "Top-1 accuracy, %", ...space, height: space.height + 9 * Math.max(0, lines.length - 7), xaxis: sparsityAxis(every), yaxis: { rangemode: "tozero" },
    shapes: near ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: dense, y1: dense, line: { color: c.soft, dash: "dot", width: 1.5 } }] : [],
    annotations: dense === null ? [] : [{
      text: `dense ${dense.toFixed(2)}${near ? "" : " ↑"}`, xref: "paper", x: 1, xanchor: "right", showarrow: false, font: { color: c.soft },
      ...(near ? { y: dense, yanchor: "bottom" } : { yref: "paper", y: 1, yanchor: "top" }),
    }],
  });
  if (!at("gap")) return;
  const gaps = [...new Set(DATA.gap.map((each) => each.repair))].filter(shown);
  draw("gap", gaps.map((repair, k) => {
    const mine = DATA.gap.filter((each) => each.repair === repair);
    return {
      x: mine.map((p) => 100 * p.x), y: mine.map((p) => 100 * p.y), error_y: bars({ error: mine.map((p) => p.error) }), mode: "lines+markers",
      name: `repair ${plain(repair)}`, line: { color: style("rr").colour, dash: DASHES[k % 4], width: 2 }, marker: { size: 8 },
      hovertemplate: "rr minus erk at %{x} %<br>%{y:+.2f} points<extra></extra>",
    };
  }), {
    title: "rr minus erk, points", ...space, ...(narrow.matches && gaps.length < 2 ? { height: 320, margin: { l: 12, r: 16, t: 40, b: 48 } } : {}), showlegend: gaps.length > 1, xaxis: sparsityAxis(every), yaxis: { zerolinecolor: style("erk").colour, zerolinewidth: 2 },
  });
}

function drawTransition() {
  const found = DATA.transition, x = found.sparsities.map((s) => 100 * s), marks = ["circle", "diamond", "triangle-up", "square", "cross", "star"];
  const region = (name, opacity) => (found[name] === null ? [] : [{
    type: "rect", yref: "paper", y0: 0, y1: 1, x0: 100 * found[name][0], x1: 100 * found[name][1], fillcolor: `rgba(213, 94, 0, ${opacity})`,
    line: { color: `rgba(213, 94, 0, ${3 * opacity})`, width: 1.5 }, layer: "below", label: { text: name, textposition: name === "core" ? "top right" : "top left", font: { size: 11, color: ink().text } },
  }]);
  draw("transition", Object.entries(found.series).map(([name, values], k) => ({
    x, y: values, name: plain(name), mode: "lines+markers", line: { color: style(name).colour, width: 2 }, marker: { symbol: marks[k % 6], size: 8 },
    hovertemplate: `${plain(name)} at %{x} %<br>%{y:.4f}<extra></extra>`,
  })), {
    title: plain(found.method), height: 380, margin: { l: 12, r: 16, t: 40, b: 92 }, showlegend: true,
    xaxis: sparsityAxis(found.sparsities), shapes: [...region("broad", 0.12), ...region("core", 0.28)],
  });
}

function drawAll() {
  if (DATA.accuracy.length) drawAccuracy();
  if (DATA.heat) { drawHeat(); drawCurves(); }
  if (DATA.allocations.length) drawAllocations();
  if (DATA.transition) drawTransition();
}

for (const input of document.querySelectorAll("input[name=measure]"))
  input.addEventListener("change", () => { state.measure = input.value; drawHeat(); });
for (const input of document.querySelectorAll("input[name=repair]"))
  input.addEventListener("change", () => { state.repair = input.value; drawAccuracy(); });
for (const input of document.querySelectorAll("input[name=target]"))
  input.addEventListener("change", () => {
    state.target = Number(input.value);
    for (const block of document.querySelectorAll("[data-target]")) block.hidden = block.dataset.target !== input.value;
    drawAllocations();
  });
document.getElementById("layer")?.addEventListener("change", (event) => { state.layer = Number(event.target.value); drawCurves(); });
dark.addEventListener("change", drawAll);
narrow.addEventListener("change", drawAll);
// A browser that comes back to a page remembers what was chosen.
const chosen = (name, fallback) => document.querySelector(`input[name=${name}]:checked`)?.value ?? fallback;
state.measure = chosen("measure", "rr");
state.repair = chosen("repair", "all");
document.querySelector("input[name=target]:checked")?.dispatchEvent(new Event("change"));
state.layer = Number(document.getElementById("layer")?.value ?? 0);
drawAll();
