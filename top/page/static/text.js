// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Formatting of numbers and times, and creation of elements. Texts are never parsed as markup:
// names and messages come from jobs and tasks.

export const known = (n) => typeof n === "number" && Number.isFinite(n);

/** Formats a number with four digits. */
export function num(n) {
  if (!known(n)) return "–";
  const size = Math.abs(n);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return n.toExponential(2);
  return String(Number(n.toPrecision(4)));
}

/** Formats a fraction as a percentage. */
export const percent = (n) => (known(n) ? `${Math.round(n * 100)} %` : "–");

/** Formats a duration in seconds: "42 s", "5 m 10 s", "2 h 3 m", "3 d 4 h". */
export function span(s) {
  if (!known(s)) return "–";
  const sign = s < 0 ? "−" : "";
  s = Math.round(Math.abs(s));
  if (s < 60) return `${s === 0 ? "" : sign}${s} s`;
  if (s < 3600) return `${sign}${Math.floor(s / 60)} m ${s % 60} s`;
  if (s < 86400) return `${sign}${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
  return `${sign}${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Returns the seconds until a time; NaN if unknown. */
export const until = (time, now) => (time ? (Date.parse(time) - now) / 1000 : NaN);

/** Formats the duration until a time. */
export function inTime(time, now) {
  const s = until(time, now);
  return known(s) ? (s <= 0 ? "now" : span(s)) : "–";
}

const clockFormat = new Intl.DateTimeFormat("sv-SE", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayFormat = new Intl.DateTimeFormat("sv-SE", { year: "numeric", month: "2-digit", day: "2-digit" });
export const clock = (time) => clockFormat.format(new Date(time));
export const day = (time) => dayFormat.format(new Date(time));
export const moment = (time) => (time ? `${day(time)} ${clock(time)}` : "–");

/** Formats a count with its noun. */
export const plural = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

/** Creates an element with a class and children: elements or texts. */
export function el(name, cls, ...children) {
  const e = document.createElement(name);
  if (cls) e.className = cls;
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return e;
}

const svgNS = "http://www.w3.org/2000/svg";

/** Creates an SVG element with attributes. */
export function svg(name, attributes, ...children) {
  const e = document.createElementNS(svgNS, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

/** Sets an element's text; does not touch the document if it is unchanged. */
export function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

/** Replaces an element's children only if the data they are created from has changed. */
export function fill(e, data, make) {
  const sign = JSON.stringify(data);
  if (e.dataset.sign === sign) return;
  e.dataset.sign = sign;
  e.replaceChildren(...make());
}
