"use strict";
// Draws the curves from the JSON on the page. Colours are CSS variables: nothing here knows
// whether the page is light or dark.
(() => {
  const data = JSON.parse(document.getElementById("curves-data").textContent);
  const form = document.querySelector(".controls").elements;
  const legend = document.getElementById("legend");
  const panels = document.getElementById("panels");
  const tip = document.getElementById("tip");
  const whole = document.getElementById("whole");
  const hidden = new Set(); // methods, by number
  const zoom = { x: null, y: null }; // [low, high] in the units of the axes, or all
  const DASHES = ["", "6 3", "1.5 2.5"];
  const KINDS = { "": "", own: ", nodes' own", authors: ", the authors'" };

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
    const setting = data.settings[form.setting ? form.setting.value : 0];
    return { setting, measure, axis, log: form.log.checked, models: form.models?.value ?? "average" };
  }

  // The visible lines of a panel as points {x, mean, low, high}, y in the units of the axis.
  function lines(panel, { measure, axis, log, models }) {
    const scale = measure.percent ? 100 : 1;
    const place = (value) => {
      if (value === null || value === undefined || (log && !(value > 0))) return null;
      return log ? Math.log10(value * scale) : value * scale;
    };
    const line = ({ method, x, y }, key, kind) => {
      const [mean, low, high] = y[key];
      const points = x[axis.key].map((at, k) => ({
        x: at, mean: place(mean[k]), low: place((low || mean)[k]), high: place((high || mean)[k]),
      })).filter((point) => point.x !== null);
      return { method, kind, points, banded: low !== undefined };
    };
    return panel.series.filter(({ method, x }) => !hidden.has(method) && x[axis.key]).flatMap((series) => {
      if (series.authors) return form.authors.checked && series.y[measure.key] ? [line(series, measure.key, "authors")] : [];
      const both = models === "both" || !measure.own;
      return [[measure.key, "", both || models === "average"], [measure.own, "own", both || models === "own"]]
        .filter(([key, , shown]) => shown && series.y[key]).map(([key, kind]) => line(series, key, kind));
    });
  }

  // ------------------------------------------------------------------ drawing

  function draw() {
    const now = wanted();
    const drawn = now.setting.panels.map((panel) => lines(panel, now));
    const within = ({ x }) => !zoom.x || (zoom.x[0] <= x && x <= zoom.x[1]);
    const ys = drawn.flat().flatMap(({ points }) =>
      points.filter(within).flatMap(({ mean, low, high }) => [mean, low, high].filter((y) => y !== null)));
    const heights = zoom.y ?? range(ys, 0.04);
    now.setting.panels.forEach((panel, k) => drawPanel(panels.children[k], panel, drawn[k], heights, now));
    tip.hidden = true;
    whole.disabled = !zoom.x && !zoom.y;
    remember();
  }

  function show(x, y) { // a part of the axes
    if (x !== undefined) zoom.x = x;
    if (y !== undefined) {
      zoom.y = y;
      const text = (value) => (y ? String(Number((form.log.checked ? 10 ** value : value).toPrecision(4))) : "");
      form.low.value = text(y?.[0]);
      form.high.value = text(y?.[1]);
    }
    draw();
  }

  function typed() { // heights from the two fields; an empty one means what is there
    const now = panels.firstElementChild.view;
    const log = form.log.checked;
    const read = (field, other) => {
      const value = field.value === "" || (log && !(field.valueAsNumber > 0)) ? null : field.valueAsNumber;
      return value === null ? other : log ? Math.log10(value) : value;
    };
    const [low, high] = [read(form.low, now.yLow), read(form.high, now.yHigh)];
    zoom.y = (form.low.value || form.high.value) && low < high ? [low, high] : null;
    draw();
  }

  function drawPanel(figure, panel, drawn, [yLow, yHigh], { measure, axis, log }) {
    const svg = figure.querySelector("svg");
    const width = Math.max(240, figure.clientWidth), height = Math.max(230, width / 2);
    const left = 46, right = width - 12, top = 10, bottom = height - 38;
    const [xLow, xHigh] = zoom.x ?? range(drawn.flatMap(({ points }) => points.map(({ x }) => x)), 0);
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
    const box = { x: left, y: top, width: right - left, height: bottom - top };
    const plot = shape("svg", { class: "plot", ...box, viewBox: Object.values(box).join(" ") }, svg);
    for (const { method, kind, points, banded } of drawn) {
      if (!banded || (kind === "" && drawn.some((line) => line.kind === "own"))) continue;
      for (const run of runs(points, ({ low, high }) => low !== null && high !== null)) {
        const edge = run.map(({ x, high }) => at(x, high)).concat(run.map(({ x, low }) => at(x, low)).reverse());
        shape("path", { class: `band ${colour(method)}`, "data-method": method, d: `M${edge.join("L")}Z` }, plot);
      }
    }
    for (const { method, kind, points } of drawn) {
      const look = { class: `curve ${kind} ${colour(method)}`, "data-method": method };
      for (const run of runs(points, ({ mean }) => mean !== null)) {
        if (run.length === 1) {
          shape("circle", { ...look, class: `mark ${colour(method)}`, cx: across(run[0].x), cy: down(run[0].mean), r: 2.6 }, plot);
          continue;
        }
        const path = `M${run.map(({ x, mean }) => at(x, mean)).join("L")}`;
        shape("path", { ...look, "stroke-dasharray": kind ? "1.5 2.5" : dashes(method), d: path }, plot);
      }
    }
    const overlay = shape("g", { class: "overlay" }, svg);
    figure.view = { svg, overlay, drawn, across, down, left, right, top, bottom, width, xLow, xHigh, yLow, yHigh, size, unit, axis, log };
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
    const within = ({ x: own, mean }) => mean !== null && figure.view.xLow <= own && own <= figure.view.xHigh;
    const known = drawn.map((line) => ({ ...line, points: line.points.filter(within) })).filter(({ points }) => points.length);
    if (!known.length) return;
    const snapped = nearest(known.map(({ points }) => nearest(points, x)), x).x;
    figure.view.at = snapped;
    const rows = element("table");
    for (const { method, kind, points } of known) {
      const last = points[points.length - 1], before = points[points.length - 2] || points[0];
      if (snapped > last.x + (last.x - before.x)) continue; // this line has ended
      const point = nearest(points, snapped);
      shape("circle", { class: `mark ${colour(method)}`, cx: across(point.x), cy: down(point.mean), r: 3.2 }, overlay);
      const value = (y) => short(log ? 10 ** y : y);
      const spread = point.low !== null && point.low !== point.high ? `${value(point.low)} to ${value(point.high)}` : "";
      const row = element("tr");
      const mark = element("td");
      mark.append(sample(method));
      row.append(mark, element("td", {}, data.methods[method] + KINDS[kind]), element("td", {}, value(point.mean)), element("td", {}, spread));
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
    figure.view.at = figure.view.start = undefined;
    tip.hidden = true;
  }

  // Where the pointer is, as shares of the plot from its left and its foot.
  function shares(event) {
    const { svg, width, left, right, top, bottom } = event.currentTarget.parentElement.view;
    const box = svg.getBoundingClientRect(), scale = width / box.width;
    return [((event.clientX - box.left) * scale - left) / (right - left),
      (bottom - (event.clientY - box.top) * scale) / (bottom - top)];
  }

  function point(event) {
    const figure = event.currentTarget.parentElement, { xLow, xHigh, overlay, left, right, top, bottom, start } = figure.view;
    const now = shares(event);
    if (!start) return read(figure, xLow + now[0] * (xHigh - xLow), event.clientX, event.clientY);
    const [[x1, y1], [x2, y2]] = part(start, now);
    const box = { x: left + x1 * (right - left), width: (x2 - x1) * (right - left), y: bottom - y2 * (bottom - top), height: (y2 - y1) * (bottom - top) };
    overlay.replaceChildren(shape("rect", { class: "part", ...box }));
    tip.hidden = true;
    return undefined;
  }

  // The part between two corners, within the plot; all of a side along which hardly anything was drawn.
  function part(...corners) {
    const sides = [0, 1].map((k) => corners.map((c) => Math.min(1, Math.max(0, c[k]))).sort((a, b) => a - b));
    const [x, y] = sides.map(([low, high]) => (high - low < 0.06 ? [0, 1] : [low, high]));
    return [[x[0], y[0]], [x[1], y[1]]];
  }

  function press(event) {
    if (event.button) return;
    event.currentTarget.parentElement.view.start = shares(event);
    event.currentTarget.setPointerCapture(event.pointerId);
  }

  function release(event) {
    const figure = event.currentTarget.parentElement, { xLow, xHigh, yLow, yHigh, start } = figure.view;
    if (!start) return;
    figure.view.start = undefined;
    const [[x1, y1], [x2, y2]] = part(start, shares(event));
    const pick = (low, high, a, b) => (b - a < 1 ? [low + a * (high - low), low + b * (high - low)] : undefined);
    const x = pick(xLow, xHigh, x1, x2), y = pick(yLow, yHigh, y1, y2);
    if (x || y) show(x, y);
    else point(event); // a tap reads
  }

  function key(event) {
    const figure = event.currentTarget.parentElement, { drawn, at, xLow, xHigh } = figure.view;
    if (event.key === "Escape") return forget(figure);
    if (event.key === "0") return show(null, null);
    const half = { "+": 0.25, "-": 1 }[event.key] * (xHigh - xLow);
    const xs = [...new Set(drawn.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b);
    if (!xs.length) return undefined;
    if (half) {
      const middle = at ?? (xLow + xHigh) / 2;
      const wide = [Math.max(xs[0], middle - half), Math.min(xs[xs.length - 1], middle + half)];
      return show(wide[0] === xs[0] && wide[1] === xs[xs.length - 1] ? null : wide);
    }
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction) return undefined;
    event.preventDefault();
    const seen = xs.filter((x) => xLow <= x && x <= xHigh);
    const now = at === undefined ? (direction > 0 ? -1 : seen.length) : seen.indexOf(at);
    return read(figure, seen[Math.max(0, Math.min(seen.length - 1, now + direction))]);
  }

  // ------------------------------------------------------------------ building

  function build() {
    const { setting } = wanted();
    panels.replaceChildren(...setting.panels.map(({ topology }) => {
      const figure = element("figure", { class: "chart" });
      figure.append(element("figcaption", {}, topology));
      const svg = shape("svg", { role: "img", tabindex: "0" }, figure);
      svg.addEventListener("pointermove", point);
      svg.addEventListener("pointerdown", press);
      svg.addEventListener("pointerup", release);
      svg.addEventListener("pointercancel", () => forget(figure));
      svg.addEventListener("pointerleave", () => forget(figure));
      svg.addEventListener("dblclick", () => show(null, null));
      svg.addEventListener("keydown", key);
      svg.addEventListener("blur", () => forget(figure));
      return figure;
    }));
    const present = new Set(setting.panels.flatMap(({ series }) => series.map(({ method }) => method)));
    const options = [...form.measure.options]; // of what this setting was measured by
    for (const option of options) {
      const { key } = data.measures[option.value];
      option.hidden = option.disabled = !setting.panels.some(({ series }) => series.some(({ y }) => y[key]));
    }
    if (form.measure.selectedOptions[0]?.disabled) {
      form.measure.value = options.find((option) => !option.disabled)?.value ?? form.measure.value;
      form.log.checked = wanted().measure.log;
    }
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

  // ------------------------------------------------------------------ a page that follows runs

  const refresh = Number(document.body.dataset.refresh) * 1000;

  function remember() {
    if (!refresh) return;
    const fields = [...form].map(({ value, checked }) => [value, checked]);
    sessionStorage.setItem(location.pathname, JSON.stringify({ fields, hidden: [...hidden], zoom }));
  }

  function recall() {
    const kept = refresh && JSON.parse(sessionStorage.getItem(location.pathname));
    if (!kept || kept.fields.length !== form.length) return;
    kept.fields.forEach(([value, checked], k) => Object.assign(form[k], form[k].type === "radio" ? { checked } : { value, checked }));
    kept.hidden.forEach((method) => hidden.add(method));
    Object.assign(zoom, kept.zoom);
  }

  function follow() {
    panels.querySelector(":hover") ? setTimeout(follow, 1000) : location.reload();
  }

  // ------------------------------------------------------------------ tables

  function sortBy(head, k) {
    const table = head.closest("table");
    const up = head.ariaSort === "descending";
    for (const other of table.querySelectorAll("th.sort")) other.ariaSort = null;
    head.ariaSort = up ? "ascending" : "descending";
    const groups = table.matches(".results") ? [...table.tBodies] : [...table.tBodies[0].rows]; // a method has a body
    const value = (group) => {
      const row = group.rows?.[0] ?? group;
      const cell = row.cells[k + (group.rows ? 1 : 0)]; // a head of two columns stands above both
      const text = cell.firstChild?.textContent ?? "";
      return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
    };
    const worth = new Map(groups.map((group) => [group, value(group)]));
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    groups.sort((a, b) => order(worth.get(a), worth.get(b)) * (up ? 1 : -1));
    groups[0].parentElement.append(...groups);
  }

  for (const head of document.querySelectorAll("th.sort")) {
    const button = element("button", { type: "button" }, head.textContent);
    button.addEventListener("click", () => sortBy(head, head.cellIndex));
    head.replaceChildren(button);
  }

  // ------------------------------------------------------------------ beginning

  document.getElementById("drawn").hidden = false;
  const controls = document.querySelector(".controls");
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("change", ({ target: { name } }) => {
    if (name === "low" || name === "high") return typed();
    if (name === "measure") form.log.checked = wanted().measure.log;
    if (name === "axis" || name === "setting") zoom.x = null;
    if (name === "measure" || name === "log" || name === "setting") {
      zoom.y = null;
      form.low.value = form.high.value = "";
    }
    return name === "setting" ? build() : draw();
  });
  whole.addEventListener("click", () => show(null, null));
  form.log.checked = data.measures[form.measure.value]?.log ?? false; // browsers keep old choices
  form.low.value = form.high.value = "";
  recall();
  build();
  let width = panels.clientWidth;
  new ResizeObserver(() => {
    if (panels.clientWidth === width) return;
    width = panels.clientWidth;
    draw();
  }).observe(panels);
  if (refresh) setTimeout(follow, refresh);
})();
