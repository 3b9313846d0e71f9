// Drives the studio in Firefox over WebDriver BiDi: node firefox.mjs PUPPETEER FIREFOX ADDRESS IMAGES... -> JSON
import { createRequire } from "node:module";

const [, , folder, executablePath, address, ...images] = process.argv;
const puppeteer = createRequire(`${folder}/`)("puppeteer-core");
const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true });
try {
  const page = await browser.newPage();
  const problems = [];
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.setViewport({ width: 1360, height: 860 });
  await page.goto(address, { waitUntil: "load" });
  await page.waitForFunction(() => document.body.dataset.phase === "ready", { timeout: 120000 });
  const classes = await page.$$eval("#classes textarea", (all) => all.map((each) => each.value));
  await (await page.$("#file")).uploadFile(...images); // goes to the tray
  await page.waitForFunction((n) => document.querySelectorAll("#test .bars li").length >= n, { timeout: 120000 }, images.length);
  const answers = await page.$$eval("#test .bars li:first-child span", (all) => all.map((each) => each.textContent));
  const wide = {};
  for (const tab of ["teach", "answers", "label", "review", "map"]) {
    await page.click(`#tab-${tab}`);
    wide[tab] = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  }
  console.log(JSON.stringify({ classes, answers, wide, problems }));
} finally {
  await browser.close();
}
