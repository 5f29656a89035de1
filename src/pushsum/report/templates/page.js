"use strict";
// Draws the curves from the JSON on the page. Colours are CSS variables: nothing here knows
// whether the page is light or dark.
(() => {
  const data = JSON.parse(document.getElementById("curves-data").textContent);
  const form = document.querySelector(".controls").elements;
  const legend = document.getElementById("legend");
  const panels = document.getElementById("panels");
  const tip = document.getElementById("tip");
  const hidden = new Set(); // methods, by number
  const DASHES = ["", "6 3", "1.5 2.5"];

  const UNITS = {
    bytes: [[1, "B"], [1e3, "kB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"], [1e15, "PB"]],
    time: [[1e-6, "µs"], [1e-3, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "d"]],
  };

  // ------------------------------------------------------------------ elements

  function element(name, attributes = {}, text) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function shape(name, attributes, parent, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent?.append(made);
    return made;
  }

  const colour = (method) => `m${data.looks[method][0]}`;
  const dashes = (method) => DASHES[data.looks[method][1]];

  function sample(method) {
    const svg = shape("svg", { width: 26, height: 10, class: colour(method), "aria-hidden": "true" });
    shape("path", { d: "M1 5H25", class: "curve", "stroke-dasharray": dashes(method) }, svg);
    return svg;
  }

  // ------------------------------------------------------------------ numbers

  function step(span, most) {
    const unit = 10 ** Math.floor(Math.log10(span / most));
    return [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= (span / most) * (1 - 1e-9));
  }

  function linearTicks(low, high, most) {
    const size = step(high - low, most), ticks = [];
    const decimals = Math.max(0, -Math.floor(Math.log10(size) + 1e-9));
    for (let k = Math.ceil(low / size - 1e-6); k * size <= high + size * 1e-6; k++) {
      const value = k * size;
      const far = Math.abs(value) >= 1e7 || (decimals > 6 && value !== 0);
      ticks.push([value, far ? value.toExponential(1) : value.toFixed(decimals)]);
    }
    return ticks;
  }

  function logTicks(low, high, most) { // of logarithms
    if (high - low < 1.2) {
      return linearTicks(10 ** low, 10 ** high, most)
        .filter(([value]) => value > 0).map(([value, label]) => [Math.log10(value), label]);
    }
    const every = Math.max(1, Math.round(step(high - low, most))), ticks = [];
    for (let k = Math.ceil(low / every) * every; k <= high; k += every) ticks.push([k, power(k)]);
    return ticks;
  }

  function power(exponent) {
    const digits = [...String(exponent)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
    return `10${digits}`;
  }

  function short(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e6 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  }

  function range(values, padding) {
    if (!values.length) return [0, 1];
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high), 1e-290)) {
      const around = Math.abs(low) * 0.1 || 1;
      return [low - around, high + around];
    }
    return [low - padding * (high - low), high + padding * (high - low)];
  }

  // ------------------------------------------------------------------ what is asked for

  function wanted() {
    const measure = data.measures[form.measure.value];
    const axis = data.axes.find(({ key }) => key === form.axis.value);
    return { setting: data.settings[form.setting ? form.setting.value : 0], measure, axis, log: form.log.checked };
  }

  // The visible lines of a panel as points {x, mean, low, high}, y in the units of the axis.
  function lines(panel, { measure, axis, log }) {
    const scale = measure.percent ? 100 : 1;
    const place = (value) => {
      if (value === null || value === undefined || (log && !(value > 0))) return null;
      return log ? Math.log10(value * scale) : value * scale;
    };
    return panel.series.filter(({ method, y }) => !hidden.has(method) && y[measure.key]).map((series) => {
      const [mean, low, high] = series.y[measure.key];
      const points = series.x[axis.key].map((x, k) => ({
        x, mean: place(mean[k]), low: place((low || mean)[k]), high: place((high || mean)[k]),
      })).filter(({ x }) => x !== null);
      return { method: series.method, points, banded: low !== undefined };
    });
  }

  // ------------------------------------------------------------------ drawing

  function draw() {
    const now = wanted();
    const drawn = now.setting.panels.map((panel) => lines(panel, now));
    const ys = drawn.flat().flatMap(({ points }) =>
      points.flatMap(({ mean, low, high }) => [mean, low, high].filter((y) => y !== null)));
    const heights = range(ys, 0.04);
    now.setting.panels.forEach((panel, k) => drawPanel(panels.children[k], panel, drawn[k], heights, now));
    tip.hidden = true;
  }

  function drawPanel(figure, panel, drawn, [yLow, yHigh], { measure, axis, log }) {
    const svg = figure.querySelector("svg");
    const width = Math.max(240, figure.clientWidth), height = Math.max(230, width / 2);
    const left = 46, right = width - 12, top = 10, bottom = height - 38;
    const [xLow, xHigh] = range(drawn.flatMap(({ points }) => points.map(({ x }) => x)), 0);
    const largest = Math.max(Math.abs(xLow), Math.abs(xHigh));
    const [size, unit] = (UNITS[axis.key] || [[1, ""]]).filter(([s], k) => k === 0 || s <= largest).pop();
    const across = (x) => left + (right - left) * (x - xLow) / (xHigh - xLow);
    const down = (y) => bottom - (bottom - top) * (y - yLow) / (yHigh - yLow);
    const at = (x, y) => `${across(x).toFixed(1)} ${down(y).toFixed(1)}`;

    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("aria-label", `${panel.topology}: ${measure.label} over ${axis.label}`);
    svg.replaceChildren();
    for (const [value, label] of linearTicks(xLow / size, xHigh / size, Math.max(2, width / 56))) {
      const x = across(value * size);
      shape("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }, svg);
      shape("text", { class: "x", x, y: bottom + 15, "text-anchor": "middle" }, svg, label);
    }
    for (const [value, label] of log ? logTicks(yLow, yHigh, 6) : linearTicks(yLow, yHigh, 6)) {
      const y = down(value);
      shape("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }, svg);
      shape("text", { class: "y", x: left - 6, y: y + 4, "text-anchor": "end" }, svg, label);
    }
    shape("path", { class: "axis", fill: "none", d: `M${left} ${top}V${bottom}H${right}` }, svg);
    const label = unit ? `${axis.label} (${unit})` : axis.label;
    shape("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, svg, label);
    if (!drawn.some(({ points }) => points.some(({ mean }) => mean !== null))) {
      shape("text", { x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, svg, "nothing to draw");
    }
    for (const { method, points, banded } of drawn) {
      for (const run of banded ? runs(points, ({ low, high }) => low !== null && high !== null) : []) {
        const edge = run.map(({ x, high }) => at(x, high)).concat(run.map(({ x, low }) => at(x, low)).reverse());
        shape("path", { class: `band ${colour(method)}`, "data-method": method, d: `M${edge.join("L")}Z` }, svg);
      }
    }
    for (const { method, points } of drawn) {
      for (const run of runs(points, ({ mean }) => mean !== null)) {
        if (run.length === 1) {
          const dot = { cx: across(run[0].x), cy: down(run[0].mean), r: 2.6 };
          shape("circle", { class: `mark ${colour(method)}`, "data-method": method, ...dot }, svg);
          continue;
        }
        const path = `M${run.map(({ x, mean }) => at(x, mean)).join("L")}`;
        shape("path", { class: `curve ${colour(method)}`, "data-method": method, "stroke-dasharray": dashes(method), d: path }, svg);
      }
    }
    const overlay = shape("g", { class: "overlay" }, svg);
    figure.view = { svg, overlay, drawn, across, down, left, right, top, bottom, width, xLow, xHigh, size, unit, axis, log };
  }

  function runs(points, drawable) { // unbroken stretches
    const found = [[]];
    for (const point of points) drawable(point) ? found[found.length - 1].push(point) : found.push([]);
    return found.filter((run) => run.length);
  }

  // ------------------------------------------------------------------ reading values

  const nearest = (points, x) => points.reduce((best, p) => (Math.abs(p.x - x) < Math.abs(best.x - x) ? p : best));

  function read(figure, x, clientX, clientY) {
    const { svg, overlay, drawn, across, down, top, bottom, size, unit, axis, log } = figure.view;
    overlay.replaceChildren();
    const known = drawn.map(({ method, points }) => ({ method, points: points.filter(({ mean }) => mean !== null) }))
      .filter(({ points }) => points.length);
    if (!known.length) return;
    const snapped = nearest(known.map(({ points }) => nearest(points, x)), x).x;
    figure.view.at = snapped;
    const rows = element("table");
    for (const { method, points } of known) {
      const last = points[points.length - 1], before = points[points.length - 2] || points[0];
      if (snapped > last.x + (last.x - before.x)) continue; // this line has ended
      const point = nearest(points, snapped);
      shape("circle", { class: `mark ${colour(method)}`, cx: across(point.x), cy: down(point.mean), r: 3.2 }, overlay);
      const value = (y) => short(log ? 10 ** y : y);
      const spread = point.low !== null && point.low !== point.high ? `${value(point.low)} to ${value(point.high)}` : "";
      const row = element("tr");
      const mark = element("td");
      mark.append(sample(method));
      row.append(mark, element("td", {}, data.methods[method]), element("td", {}, value(point.mean)), element("td", {}, spread));
      rows.append(row);
    }
    const x1 = across(snapped);
    overlay.prepend(shape("line", { class: "guide", x1, x2: x1, y1: top, y2: bottom }, overlay));
    tip.replaceChildren(element("div", {}, `${axis.label}: ${short(snapped / size)}${unit ? ` ${unit}` : ""}`), rows);
    tip.hidden = false;
    const box = svg.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const px = clientX ?? box.left + x1, py = clientY ?? box.top + 20;
    const beside = px + 16 + own.width > innerWidth - 8 ? px - 16 - own.width : px + 16;
    tip.style.left = `${Math.max(8, Math.min(beside, innerWidth - own.width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(py + 14, innerHeight - own.height - 8))}px`;
  }

  function forget(figure) {
    figure.view.overlay.replaceChildren();
    figure.view.at = undefined;
    tip.hidden = true;
  }

  function point(event) {
    const figure = event.currentTarget.parentElement, view = figure.view;
    const box = view.svg.getBoundingClientRect();
    const share = ((event.clientX - box.left) * view.width / box.width - view.left) / (view.right - view.left);
    read(figure, view.xLow + share * (view.xHigh - view.xLow), event.clientX, event.clientY);
  }

  function key(event) {
    const figure = event.currentTarget.parentElement, view = figure.view;
    if (event.key === "Escape") return forget(figure);
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction) return undefined;
    event.preventDefault();
    const xs = [...new Set(view.drawn.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b);
    if (!xs.length) return undefined;
    const now = view.at === undefined ? (direction > 0 ? -1 : xs.length) : xs.indexOf(view.at);
    return read(figure, xs[Math.max(0, Math.min(xs.length - 1, now + direction))]);
  }

  // ------------------------------------------------------------------ building

  function build() {
    const { setting } = wanted();
    panels.replaceChildren(...setting.panels.map(({ topology }) => {
      const figure = element("figure", { class: "chart" });
      figure.append(element("figcaption", {}, topology));
      const svg = shape("svg", { role: "img", tabindex: "0" }, figure);
      svg.addEventListener("pointermove", point);
      svg.addEventListener("pointerdown", point);
      svg.addEventListener("pointerleave", () => forget(figure));
      svg.addEventListener("keydown", key);
      svg.addEventListener("blur", () => forget(figure));
      return figure;
    }));
    const present = new Set(setting.panels.flatMap(({ series }) => series.map(({ method }) => method)));
    legend.replaceChildren(...[...present].sort((a, b) => a - b).map((method) => {
      const button = element("button", { type: "button", "data-method": method, "aria-pressed": String(!hidden.has(method)) });
      button.append(sample(method), element("span", {}, data.methods[method]));
      button.addEventListener("click", () => {
        if (!hidden.delete(method)) hidden.add(method);
        button.setAttribute("aria-pressed", String(!hidden.has(method)));
        draw();
      });
      return button;
    }));
    draw();
  }

  document.getElementById("drawn").hidden = false;
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  document.querySelector(".controls").addEventListener("change", (event) => {
    if (event.target.name === "measure") form.log.checked = wanted().measure.log;
    event.target.name === "setting" ? build() : draw();
  });
  form.log.checked = data.measures[form.measure.value]?.log ?? false; // browsers keep old choices
  build();
  let width = panels.clientWidth;
  new ResizeObserver(() => {
    if (panels.clientWidth === width) return;
    width = panels.clientWidth;
    draw();
  }).observe(panels);
})();
