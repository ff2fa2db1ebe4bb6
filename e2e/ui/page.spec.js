// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

import { test as base } from "@playwright/test";

import { accessible, address, expect, open, test } from "./common.js";

const views = ["#/tasks", "#/nodes", "#/gpus", "#/moves", "#/saved", "#/policies"];

test("it shows nodes, tasks, curves and why", async ({ page }) => {
  await open(page, address("EBBTIDE_UI"));
  await expect(page.locator("#totals")).toContainText("60");
  await expect(page.locator("#shown")).toHaveText("60 tasks");
  await expect(page.locator("#tasks tbody tr", { hasText: "late: its twin has ended" }).first()).toContainText("+");
  await expect(page.locator("#tasks .spark path").first()).toHaveAttribute("d", /^M.*L/);

  await page.getByLabel("Filter").fill("late");
  await expect(page.locator("#shown")).toHaveText("3 of 60 tasks");
  await page.getByLabel("Filter").fill("");
  await page.getByLabel("Namespace").selectOption("vision");
  await expect(page.locator("#shown")).toHaveText("15 of 60 tasks");
  await page.getByLabel("Namespace").selectOption("");

  const header = page.getByRole("columnheader", { name: "Node" });
  await header.getByRole("button").click();
  await expect(header).toHaveAttribute("aria-sort", "ascending");
  await expect(page.locator("#tasks tbody tr:not(.pad)").first()).toContainText("train-01");
  await header.getByRole("button").click();
  await expect(header).toHaveAttribute("aria-sort", "descending");
  await expect(page.locator("#tasks tbody tr:not(.pad)").first()).toContainText("train-08");

  await page.goto(address("EBBTIDE_UI") + "#/nodes");
  await expect(page.locator("#nodes tbody tr:not(.pad)")).toHaveCount(8);
});

test("a task has its curves, limits over time, and events", async ({ page }) => {
  await open(page, address("EBBTIDE_UI"));
  await page.locator("#tasks tbody a").first().click();
  await expect(page.locator("#h-task")).toBeFocused();
  await expect(page.locator("#task-charts svg")).toHaveCount(4);
  await expect(page.getByRole("img", { name: /^CPU, share of the node's pool.*limit: .* between/ })).toBeVisible();
  await expect(page.locator("#task-charts svg").nth(1).locator("path")).toHaveCount(2);
  await expect(page.locator("#task-events")).toContainText("Task started by client");
  await expect(page.locator("#task-facts")).toContainText("of a pool of 4 cores");
  await page.getByRole("link", { name: "All tasks" }).click();
  await expect(page.locator("#tasks")).toBeVisible();
});

test("moves, refusals, GPUs, time saved, and what each policy would do", async ({ page }) => {
  await open(page, address("EBBTIDE_UI"), "#/moves");
  await expect(page.locator("#shim")).toContainText("ctl-1, process 812");
  await expect(page.locator("#moves")).toContainText("train-02");
  await expect(page.locator("#moves")).toContainText("it ends 12 minutes sooner there");
  await expect(page.locator("#done")).toContainText("it ends 41 minutes sooner there");
  await expect(page.locator("#done")).toContainText("failed at save");
  await expect(page.locator("#refused")).toContainText("it would be done before the move had paid");

  const queue = page.locator("#queue tbody tr:not(.pad)");
  await expect(queue).toHaveCount(4);
  await expect(queue.first()).toContainText("wav2vec-98");
  await expect(queue.first().locator(".bad")).toHaveText("late");
  await expect(queue.first().getByRole("link")).toHaveCount(0);
  await expect(queue.nth(1)).toContainText("waits");
  await expect(queue.nth(1)).toContainText("suspended at step 2400: no place is free");
  await expect(queue.nth(2)).toContainText("hold");
  await expect(queue.nth(3).getByRole("link")).toHaveAttribute("href", /^#\/task\//);
  await expect(page.locator("#queue-off")).toBeHidden();
  const owners = page.locator("#owners tbody tr:not(.pad)");
  await expect(owners).toHaveCount(3);
  await expect(owners.first()).toHaveText("default163 %25 %10");

  await page.goto(`${address("EBBTIDE_UI")}#/gpus`);
  const parked = page.locator("#gpus tbody tr", { hasText: "NVIDIA A2" }).first();
  await expect(parked).toContainText("parked");
  await expect(parked.getByRole("cell", { name: "408", exact: true }).first()).toBeVisible();

  await page.getByRole("link", { name: "Time saved" }).click();
  await expect(page.locator("#saved-text")).toContainText("40 finished tasks whose allocations Nomad still has");
  await expect(page.locator("#jobs tbody tr:not(.pad)")).toHaveCount(6);
  await expect(page.locator("#slowed")).toContainText("it was first estimated at 300 CPU-seconds, and used 420");

  await page.getByRole("link", { name: "Policies" }).click();
  for (const name of ["auto (active)", "fsp", "flowcon", "tradl", "dqoes", "none"]) {
    await expect(page.getByRole("columnheader", { name, exact: true })).toBeVisible();
  }
  await page.locator("#policies summary").first().click();
  await expect(page.locator("#policies details").first()).toContainText("CPU-seconds");
  await page.getByRole("combobox", { name: "Node" }).selectOption("train-03");
  await expect(page.locator("#policy-text")).toContainText("that auto used");
});

for (const [name, options] of [
  ["light", { colorScheme: "light" }],
  ["dark", { colorScheme: "dark" }],
  ["on a phone", { viewport: { width: 360, height: 740 } }],
]) {
  test.describe(name, () => {
    test.use(options);
    test("accessible, and nothing overflows", async ({ page }) => {
      const url = address("EBBTIDE_UI");
      for (const view of views) {
        await open(page, url, view);
        await accessible(page);
        expect(await page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth), view).toBe(true);
      }
      await open(page, url);
      await page.locator("#tasks tbody a").first().click();
      await expect(page.locator("#task-charts svg")).toHaveCount(4);
      await accessible(page);
      expect(await page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth)).toBe(true);
      await page.getByRole("button", { name: "Token" }).click();
      await accessible(page);
    });
  });
}

test("the keyboard reaches everything", async ({ page }) => {
  await open(page, address("EBBTIDE_UI"));
  const reached = new Set();
  for (let i = 0; i < 40; i++) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => {
      const e = document.activeElement;
      const visible = e === document.body || getComputedStyle(e).outlineStyle !== "none";
      return visible ? e.id || `${e.closest("[id]")?.id}:${e.tagName}` : "focus is not seen";
    }));
  }
  expect([...reached]).toEqual(expect.arrayContaining(["nav:A", "token-button", "filter", "namespace", "tasks:BUTTON", "tasks:A"]));
  expect([...reached]).not.toContain("focus is not seen");
  // Tab through many rows, then open one.
  await page.locator("#tasks tbody a").first().focus();
  const first = await page.evaluate(() => document.activeElement.textContent);
  for (let i = 0; i < 35; i++) await page.keyboard.press("Tab");
  expect(await page.evaluate(() => document.activeElement.textContent)).not.toBe(first);
  expect(await page.evaluate(() => document.activeElement.closest("#tasks") !== null)).toBe(true);
  await page.keyboard.press("Enter");
  await expect(page.locator("#h-task")).toBeFocused();
});

test("nothing comes from elsewhere", async ({ page }) => {
  const url = address("EBBTIDE_UI");
  const asked = [];
  page.on("request", (r) => asked.push(r.url()));
  const answer = await page.goto(url);
  expect(answer.headers()["content-security-policy"]).toContain("default-src 'none'");
  await open(page, url, "#/policies");
  expect(asked.filter((u) => !u.startsWith(url))).toEqual([]);
});

// Without the check for errors, as the browser logs each refusal.
base("a foreign site gets nothing", async ({ page }) => {
  const url = address("EBBTIDE_UI");
  await page.goto(address("EBBTIDE_FOREIGN"));
  for (const path of ["", "api/events", "api/task", "app.js"]) {
    for (const mode of ["cors", "no-cors"]) {
      const got = await page.evaluate(async ([u, m]) => {
        try {
          return await (await fetch(u, { mode: m, headers: m === "cors" ? { "X-Nomad-Token": "x" } : {} })).text();
        } catch {
          return "";
        }
      }, [url + path, mode]);
      expect(got, `${mode} ${path}`).toBe("");
    }
  }
  // Embedded in a frame.
  const empty = await page.evaluate(async (u) => {
    const frame = document.createElement("iframe");
    frame.src = u;
    const loaded = new Promise((done) => (frame.onload = done));
    document.body.append(frame);
    await loaded;
    return frame.contentDocument === null;
  }, url);
  expect(empty).toBe(true);
  expect(page.frames().filter((f) => f.url().startsWith(url))).toEqual([]);
});

test("a foreign name for the same address gets nothing", async ({ page }) => {
  const url = new URL(address("EBBTIDE_UI"));
  url.hostname = "foreign.example";
  const answer = await page.goto(url.href);
  expect(answer.status()).toBe(421);
  expect(await answer.text()).not.toContain("<html");
});

test("beyond loopback a token is needed, and a wrong one gets nothing", async ({ page, request }) => {
  const url = address("EBBTIDE_UI_TOKEN");
  expect((await request.get(`${url}api/events`)).status()).toBe(401);
  await page.goto(url);
  const dialog = page.getByRole("dialog", { name: "Nomad token" });
  await expect(dialog).toBeVisible();
  await expect(page.locator("#tasks tbody tr:not(.pad)")).toHaveCount(0);
  await page.getByLabel("Secret ID").fill("wrong");
  await page.getByRole("button", { name: "Use token" }).click();
  await expect(dialog.getByRole("alert")).toHaveText("Nomad does not know this token");
  await accessible(page);
  await expect(page.locator("#tasks tbody tr:not(.pad)")).toHaveCount(0);
  await page.getByLabel("Secret ID").fill("right");
  await page.keyboard.press("Enter");
  await expect(page.locator("#live")).toHaveText("Live");
  await expect(page.locator("#shown")).toHaveText("8 tasks");
  await page.reload(); // the tab keeps it
  await expect(page.locator("#shown")).toHaveText("8 tasks");
  await page.getByRole("button", { name: "Token" }).click();
  await page.getByRole("button", { name: "Forget token" }).click();
  await expect(page.locator("#tasks tbody tr:not(.pad)")).toHaveCount(0);
  expect(await page.evaluate(() => sessionStorage.length + localStorage.length)).toBe(0);
});

test("an empty cluster, and an unreachable Nomad", async ({ page }) => {
  await page.goto(address("EBBTIDE_UI_EMPTY"));
  await expect(page.locator("#notices")).toContainText("No node has Ebbtide's driver");
  await accessible(page);
  await page.getByRole("link", { name: "Moves" }).click();
  await expect(page.locator("#queue-off")).toHaveText("the queue is disabled by the shim's configuration");
  await expect(page.locator("#queue")).toHaveText(/No jobs\.$/);
  await expect(page.locator("#owners-part")).toBeHidden();
  await accessible(page);
  await page.goto(address("EBBTIDE_UI_DOWN"));
  await expect(page.locator("#notices")).toContainText("No cluster leader");
  await accessible(page);
  await page.getByRole("link", { name: "Moves" }).click();
  await expect(page.locator("#shim")).toContainText("cannot be read");
  await expect(page.locator("#queue-part")).toBeHidden();
});
