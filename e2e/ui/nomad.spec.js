// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

import { address, expect, test } from "./common.js";
import { test as base } from "@playwright/test";

test("a real task on our page", async ({ page }) => {
  await page.goto(address("EBBTIDE_UI_REAL"));
  await page.getByLabel("Secret ID").fill(address("EBBTIDE_TOKEN"));
  await page.getByRole("button", { name: "Use token" }).click();
  await expect(page.locator("#live")).toHaveText("Live");
  const row = page.locator("#tasks tbody tr", { hasText: "long" });
  await expect(row).toContainText("loss");
  await expect(row.locator(".spark path")).toHaveAttribute("d", /L/);
  await row.getByRole("link").click();
  await expect(page.locator("#task-charts svg")).toHaveCount(4);
  await expect(page.locator("#task-events")).toContainText("Started");
  await page.getByRole("link", { name: "Policies" }).click();
  await expect(page.locator("#policies tbody tr").first()).toContainText("long");
  await expect(page.getByRole("columnheader", { name: "auto (active)" })).toBeVisible();
  await page.getByRole("link", { name: "Time saved" }).click();
  await expect(page.locator("#jobs")).toContainText("short");
});

test("a token sees its namespace and no other", async ({ page }) => {
  await page.goto(address("EBBTIDE_UI_REAL"));
  await page.getByLabel("Secret ID").fill(address("EBBTIDE_TOKEN_ONE"));
  await page.getByRole("button", { name: "Use token" }).click();
  const rows = page.locator("#tasks tbody tr:not(.pad)");
  await expect(rows.filter({ hasText: "elsewhere" }).locator(".spark path")).toHaveAttribute("d", /L/);
  await expect(rows).toHaveCount(1);
  const status = (token) => page.evaluate(async ({ token, alloc }) =>
    (await fetch(`api/task?alloc=${alloc}&task=train`, { headers: { "X-Nomad-Token": token } })).status,
  { token, alloc: address("EBBTIDE_ALLOC_DENIED") });
  expect(await status(address("EBBTIDE_TOKEN_ONE"))).toBe(404);
});

test("the page names the right that a token lacks", async ({ page }) => {
  await page.goto(address("EBBTIDE_UI_REAL"));
  await page.getByLabel("Secret ID").fill(address("EBBTIDE_TOKEN_NONE"));
  await page.getByRole("button", { name: "Use token" }).click();
  await expect(page.locator("#notices")).toContainText("permission denied: the token needs node:read");
  await expect(page.locator("#tasks tbody tr:not(.pad)")).toHaveCount(0);
});

// Without the check for errors, as Nomad's page may log some.
base("the task in Nomad's UI", async ({ page }) => {
  const nomad = address("EBBTIDE_NOMAD_UI");
  const alloc = address("EBBTIDE_ALLOC");
  await page.goto(`${nomad}/ui/allocations/${address("EBBTIDE_ALLOC_ENDED")}/train`);
  await expect(page.locator("[data-test-task-event], .task-events, table").getByText("with its fair share it would have taken").first()).toBeVisible();
  await page.goto(`${nomad}/ui/allocations/${alloc}/train`);
  await expect(page.locator(".primary-metric, [data-test-primary-metric]").first().locator("svg").first()).toBeVisible();
  await page.goto(`${nomad}/ui/allocations/${alloc}/fs/${encodeURIComponent("alloc/data/ebbtide/train.png")}`);
  const picture = page.locator("img[src*='train.png']");
  await expect(picture).toBeVisible();
  await expect.poll(() => picture.evaluate((i) => i.naturalWidth)).toBeGreaterThan(300);
});
