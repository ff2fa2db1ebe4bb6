// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

import { clock, el, known, moment, num, svg } from "./text.js";

/** Returns a path through the known values, with gaps for unknown ones. */
function path(points, x, y) {
  let d = "";
  let pen = false;
  for (const [at, value] of points) {
    if (!known(value)) {
      pen = false;
      continue;
    }
    d += `${pen ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = true;
  }
  return d;
}

/** Returns a curve without axes, for a table cell. */
export function spark(values) {
  const all = values.filter(known);
  const low = Math.min(...all);
  const high = Math.max(...all);
  const x = (i) => (i / Math.max(values.length - 1, 1)) * 100;
  const y = (v) => (high > low ? 18 - ((v - low) / (high - low)) * 16 : 10);
  const d = path(values.map((v, i) => [i, v]), x, y);
  return svg("svg", { class: "spark", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { class: "line", d }));
}

/** Rounds bounds outwards to multiples of a round number. */
function round(low, high) {
  if (low === high) {
    const by = Math.abs(low) || 1;
    return [low - by / 2, high + by / 2];
  }
  const step = 10 ** Math.floor(Math.log10(high - low)) / 2;
  return [Math.floor(low / step) * step, Math.ceil(high / step) * step];
}

/**
 * Returns a chart over time: {title, write(value), times, lines: [{name, values}], marks: [{time,
 * text}], bounds}. Its label describes the lines for screen readers.
 */
export function chart({ title, write = num, times, lines, marks = [], bounds }) {
  const all = lines.flatMap((l) => l.values.filter(known));
  const caption = el("figcaption", "", el("strong", "", title));
  if (lines.length > 1) lines.forEach((l, i) => caption.append(el("span", i === 0 ? "key" : "key second", l.name)));
  if (all.length < 2 || times.length < 2) return el("figure", "", caption, el("p", "muted", "Nothing to draw yet."));
  let low = all[0];
  let high = all[0];
  for (const v of all) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  const [from, to] = bounds ?? round(low, high);
  const begin = times[0];
  const end = times[times.length - 1];
  const said = lines.map((l) => {
    const values = l.values.filter(known);
    if (values.length === 0) return `${l.name}: not known`;
    return `${l.name}: ${write(values[0])} at first, ${write(values[values.length - 1])} now, between ${write(values.reduce((a, b) => Math.min(a, b)))} and ${write(values.reduce((a, b) => Math.max(a, b)))}`;
  });
  const label = `${title}, ${moment(begin)} to ${moment(end)}. ${said.join(". ")}.`;
  const picture = svg("svg", { class: "chart", role: "img", "aria-label": label });
  const figure = el("figure", "", caption, picture);
  new ResizeObserver(() => draw(picture.clientWidth)).observe(figure);

  function draw(width) {
    const height = 180;
    const [left, right, top, bottom] = [56, 8, 8, 22];
    if (width < left + right) return;
    const x = (t) => left + ((t - begin) / Math.max(end - begin, 1)) * (width - left - right);
    const y = (v) => top + (1 - (v - from) / (to - from)) * (height - top - bottom);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren();
    for (const part of [0, 0.5, 1]) {
      const value = from + (to - from) * part;
      picture.append(
        svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, write(value)),
      );
    }
    picture.append(
      svg("text", { x: left, y: height - 5 }, clock(begin)),
      svg("text", { x: width - right, y: height - 5, "text-anchor": "end" }, clock(end)),
    );
    for (const m of marks) {
      if (m.time < begin || m.time > end) continue;
      picture.append(svg("line", { class: "happened", x1: x(m.time), x2: x(m.time), y1: top, y2: height - bottom }, svg("title", {}, m.text)));
    }
    lines.forEach((l, i) => {
      const points = l.values.map((v, n) => [times[n], known(v) ? Math.min(Math.max(v, from), to) : v]);
      picture.append(svg("path", { class: i === 0 ? "line" : "line second", d: path(points, x, y) }));
    });
  }
  return figure;
}
