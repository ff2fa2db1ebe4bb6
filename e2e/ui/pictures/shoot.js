// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Takes the pictures of the documentation: make screenshots.

import { chromium } from "@playwright/test";

const url = process.env.EBBTIDE_UI;
const browser = await chromium.launch({ executablePath: process.env.EBBTIDE_CHROMIUM, args: ["--no-sandbox", "--disable-background-networking"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 640 }, colorScheme: "light", timezoneId: "UTC" });
await page.goto(url);
await page.waitForSelector("#live.ok");
await page.waitForFunction(() => {
  const rows = document.querySelectorAll("#tasks tbody tr:not(.pad)").length;
  return rows > 0 && document.querySelectorAll("#tasks .spark path").length === rows;
});
await page.screenshot({ path: process.argv[2] });
await browser.close();
