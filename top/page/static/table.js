// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

import { el } from "./text.js";

const height = 30; // of a row in pixels, with its border, as in app.css
const spare = 12; // rows drawn beyond both edges, for keyboard navigation

/**
 * A sortable table that draws only the rows on the screen.
 *
 * A column is {key, title, cls, sort(row), cell(row, td)}: sort returns the sort key, cell fills
 * a cell. The first column is the row's header.
 */
export class Table {
  #columns;
  #rows = [];
  #elements = new Map();
  #body;
  #scroll;
  #sorted;
  #wanted = false;
  #drawing = false;

  constructor(parent, { label, columns, key, sort, cls = "", empty = "", faint = () => false, onVisible = () => {} }) {
    this.#columns = columns;
    this.key = key;
    this.faint = faint;
    this.onVisible = onVisible;
    this.#sorted = { key: sort.replace(/^-/, ""), down: sort.startsWith("-") };
    const head = el("tr");
    for (const c of columns) {
      const button = el("button", "", c.title);
      button.type = "button";
      button.addEventListener("click", () => this.#sortBy(c.key));
      const th = el("th", c.cls, button);
      th.scope = "col";
      th.dataset.key = c.key;
      if (c.hint) button.title = c.hint;
      head.append(th);
    }
    this.head = head;
    this.#body = el("tbody");
    this.above = this.#pad();
    this.below = this.#pad();
    this.#body.append(this.above, this.below);
    this.table = el("table", "vtable", el("thead", "", head), this.#body);
    this.table.setAttribute("aria-label", label);
    this.#scroll = el("div", `scroll ${cls}`, this.table);
    this.#scroll.tabIndex = 0;
    this.#scroll.setAttribute("role", "region");
    this.#scroll.setAttribute("aria-label", `${label}, rows`); // the section already has the label
    this.#scroll.addEventListener("scroll", () => this.#later(), { passive: true });
    this.empty = el("p", "empty", empty);
    parent.append(this.#scroll, this.empty);
    this.#body.addEventListener("focusin", () => this.#draw()); // draw the next row before the next key press
    new ResizeObserver(() => this.#later()).observe(this.#scroll);
    this.#mark();
  }

  #pad() {
    const tr = el("tr", "pad", el("td"));
    tr.setAttribute("aria-hidden", "true");
    return tr;
  }

  #sortBy(key) {
    this.#sorted = { key, down: this.#sorted.key === key && !this.#sorted.down };
    this.#mark();
    this.set(this.#rows);
  }

  #mark() {
    for (const th of this.head.children) {
      if (th.dataset.key === this.#sorted.key) th.setAttribute("aria-sort", this.#sorted.down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
  }

  /** Shows rows in the selected order, unknown values last. */
  set(rows) {
    const column = this.#columns.find((c) => c.key === this.#sorted.key);
    const direction = this.#sorted.down ? -1 : 1;
    const missing = (v) => v === undefined || v === null || v === "" || Number.isNaN(v);
    const keyed = rows.map((row) => ({ row, by: column.sort(row), name: this.key(row) }));
    keyed.sort((a, b) => {
      if (a.by !== b.by) {
        if (missing(a.by) !== missing(b.by)) return missing(a.by) ? 1 : -1;
        if (a.by < b.by) return -direction;
        if (a.by > b.by) return direction;
      }
      return a.name < b.name ? -1 : a.name > b.name ? 1 : 0;
    });
    this.#rows = keyed.map((k) => k.row);
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.#scroll.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    if (rows.length === 0) { // a hidden table is not drawn, and would keep rows that another token may not read
      for (const tr of this.#elements.values()) tr.remove();
      this.#elements = new Map();
    }
    this.#later();
  }

  #later() {
    if (this.#wanted) return;
    this.#wanted = true;
    requestAnimationFrame(() => {
      this.#wanted = false;
      this.#draw();
    });
  }

  #draw() {
    if (!this.#scroll.offsetParent || this.#drawing) return; // hidden
    this.#drawing = true;
    const focused = document.activeElement;
    const first = Math.max(0, Math.floor(this.#scroll.scrollTop / height) - spare);
    const last = Math.min(this.#rows.length, Math.ceil((this.#scroll.scrollTop + this.#scroll.clientHeight) / height) + spare);
    this.above.firstChild.style.height = `${first * height}px`;
    this.below.firstChild.style.height = `${(this.#rows.length - last) * height}px`;
    // Remove rows first: moving a remaining row would take its focus.
    const keep = new Map();
    const shown = new Set(this.#rows.slice(first, last).map(this.key));
    for (const [key, tr] of this.#elements) if (!shown.has(key)) tr.remove();
    let at = this.above;
    for (let i = first; i < last; i++) {
      const row = this.#rows[i];
      const key = this.key(row);
      const tr = this.#elements.get(key) ?? this.#make();
      keep.set(key, tr);
      tr.setAttribute("aria-rowindex", String(i + 2));
      tr.className = this.faint(row) ? "faint" : "";
      this.#columns.forEach((c, n) => c.cell(row, tr.children[n]));
      if (at.nextSibling !== tr) at.after(tr);
      at = tr;
    }
    this.#elements = keep;
    if (focused !== document.activeElement && this.#body.contains(focused)) focused.focus({ preventScroll: true }); // sorting has moved it
    this.#drawing = false;
    this.onVisible(this.#rows.slice(first, last));
  }

  #make() {
    const tr = el("tr");
    this.#columns.forEach((c, n) => {
      const cell = el(n === 0 ? "th" : "td", c.cls);
      if (n === 0) cell.scope = "row";
      tr.append(cell);
    });
    return tr;
  }
}
