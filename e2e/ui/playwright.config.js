// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

import { defineConfig } from "@playwright/test";

// Go starts the clusters and pages, and passes their addresses in the environment (ui_test.go).
export default defineConfig({
  testDir: ".",
  testMatch: "*.spec.js",
  outputDir: process.env.EBBTIDE_UI_OUT ?? "out",
  workers: 1,
  timeout: 240_000,
  expect: { timeout: 90_000 },
  reporter: "list",
  use: {
    actionTimeout: 90_000,
    ignoreHTTPSErrors: true, // the tests' certificates are self-signed
    viewport: { width: 1360, height: 800 },
    screenshot: "only-on-failure",
    launchOptions: {
      executablePath: process.env.EBBTIDE_CHROMIUM,
      args: ["--no-sandbox", "--disable-background-networking", "--host-resolver-rules=MAP foreign.example 127.0.0.1"],
    },
  },
});
