// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

import { AxeBuilder } from "@axe-core/playwright";
import { expect, test as base } from "@playwright/test";

/** Returns an address that Go has passed; otherwise skips the test. */
export function address(name) {
  const value = process.env[name];
  base.skip(!value, `${name} is not set`);
  return value;
}

/** Tests that fail if a page logs an error or violates its content security policy. */
export const test = base.extend({
  page: async ({ page }, use) => {
    const said = [];
    page.on("pageerror", (e) => said.push(e.message));
    page.on("console", (m) => {
      // Tests cause error responses.
      if (m.type() === "error" && !m.text().startsWith("Failed to load resource")) said.push(m.text());
    });
    await use(page);
    expect(said).toEqual([]);
  },
});

export { expect };

/** Opens a view, and waits until it is connected and all tasks have been read. */
export async function open(page, url, view = "#/tasks") {
  await page.goto(url + view);
  await expect(page.locator("#live")).toHaveText("Live");
  await expect(page.locator("#totals")).not.toContainText("not read yet");
}

/** Fails on accessibility violations. */
export async function accessible(page) {
  const { violations } = await new AxeBuilder({ page }).analyze();
  expect(violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => n.html).join(" ")}`)).toEqual([]);
}
