// Bundles the used parts of ECharts into the assets of the package: one file, its licences and its digest.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { build, version as esbuild } from "esbuild";

const target = new URL("../../src/shadowprice/results/report/assets/", import.meta.url);
const installed = (name, file) => readFileSync(new URL(`node_modules/${name}/${file}`, import.meta.url), "utf8");
const version = (name) => JSON.parse(installed(name, "package.json")).version;

const parts = { echarts: version("echarts"), zrender: version("zrender"), tslib: version("tslib") };
const banner = `/*!
 * Apache ECharts ${parts.echarts}, Copyright 2017-2026 The Apache Software Foundation; Apache License 2.0.
 * zrender ${parts.zrender}, Copyright (c) 2017, Baidu Inc.; BSD 3-Clause License.
 * tslib ${parts.tslib}, Copyright (c) Microsoft Corporation; 0BSD License.
 * Parts of d3.js, Copyright 2010-2016 Mike Bostock; BSD 3-Clause License.
 * A choice of ECharts' parts, bundled and minified; the licences in full are in echarts.LICENSE.
 */`;
const result = await build({
  entryPoints: ["entry.mjs"],
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "echarts",
  target: "es2020",
  charset: "utf8",
  legalComments: "none",
  banner: { js: banner },
  write: false,
});
// Pages embed the code in a <script> element, so it must not contain the end tag.
const code = result.outputFiles[0].text.replaceAll("</script", "<\\/script").trimEnd() + "\n";
const bytes = Buffer.from(code, "utf8");
writeFileSync(new URL("echarts.min.js", target), bytes);
writeFileSync(new URL("echarts.json", target), JSON.stringify({
  ...parts,
  esbuild,
  bytes: bytes.length,
  sha256: createHash("sha256").update(bytes).digest("hex"),
}, null, 2) + "\n");
const rule = "\n\n" + "=".repeat(80) + "\n\n";
writeFileSync(new URL("echarts.LICENSE", target), [
  installed("echarts", "NOTICE").trim() + "\n\n" + installed("echarts", "LICENSE").trim(),
  installed("echarts", "licenses/LICENSE-d3").trim(),
  `zrender ${parts.zrender}\n\n` + installed("zrender", "LICENSE").trim(),
  `tslib ${parts.tslib}\n\n` + installed("tslib", "LICENSE.txt").trim(),
].join(rule) + "\n");
console.log(`echarts ${parts.echarts}: ${bytes.length} bytes`);
