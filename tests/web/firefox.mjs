// Drives the page in Firefox: node firefox.mjs PUPPETEER FIREFOX ADDRESS IMAGES... -> JSON; half of them of each of two classes
import { createRequire } from "node:module";

const [, , folder, executablePath, address, ...images] = process.argv;
const puppeteer = createRequire(`${folder}/`)("puppeteer-core");
const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true });
try {
  const page = await browser.newPage();
  const problems = [], half = images.length / 2;
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.setViewport({ width: 1360, height: 860 });
  await page.goto(address, { waitUntil: "load" });
  await page.waitForFunction(() => document.body.dataset.phase === "waiting", { timeout: 60000 });
  const names = [images[0], images[half]].map((path) => path.split("/").at(-2));
  for (const name of names) {
    await page.type("#new-name", name);
    await page.click("#new-class button");
    await page.waitForFunction((count) => document.querySelectorAll("#classes > li").length === count, {}, names.indexOf(name) + 1);
  }
  const input = await page.$("#file");
  const put = async (pick, files) => {
    await page.evaluate((selector) => { // without the window that asks for files
      const file = document.querySelector("#file"), click = file.click;
      file.click = () => {};
      document.querySelector(selector).click();
      file.click = click;
    }, pick);
    await input.uploadFile(...files);
  };
  await put("#classes > li:nth-child(1) [data-pick]", images.slice(0, half - 1));
  await page.waitForFunction((n) => document.querySelectorAll("#classes .thumb").length === n, {}, half - 1);
  await put("#classes > li:nth-child(2) [data-pick]", images.slice(half, -1));
  await page.waitForFunction((n) => document.querySelector("#status").textContent.includes(`Learned from ${n}`), { timeout: 120000 }, images.length - 2);
  await put("[data-pick=test]", [images[half - 1], images.at(-1)]);
  await page.waitForFunction(() => document.querySelectorAll("#test .bars li:first-child").length === 2, { timeout: 120000 });
  const answers = await page.$$eval("#test .bars li:first-child span", (all) => all.map((each) => each.textContent));
  const wide = {};
  for (const tab of ["teach", "answers", "label", "review", "map"]) {
    await page.click(`#tab-${tab}`);
    wide[tab] = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  }
  console.log(JSON.stringify({ answers, wide, problems }));
} finally {
  await browser.close();
}
