// node componentize.mjs WIT_FOLDER OUT: policy.js beside this file becomes a component that imports no function.
import { readFileSync, renameSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

// From the folder that the packages were installed into.
const { componentize } = createRequire(`${process.cwd()}/`)("componentize-qjs");
const [witPath, out] = process.argv.slice(2);
const jsSource = readFileSync(new URL("policy.js", import.meta.url), "utf8");
const { component } = await componentize({ witPath, jsSource, world: "policy", stubWasi: true, sync: true, optSize: true });
// At once: a build that is stopped leaves no half file.
writeFileSync(`${out}.part`, component);
renameSync(`${out}.part`, out);
