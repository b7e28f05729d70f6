"""A real browser for reports: opens a page as a reader would, and lists everything that is wrong with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = {"wide": (1280, 800), "phone": (390, 844)}
THEMES = ("light", "dark")
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser with a fresh profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """An open page, and what it said and asked for while it loaded."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def opened(
    browser: Browser, report: Path, size: str = "wide", theme: str = "light", *, script: bool = True
) -> Iterator[Opened]:
    """Open a report file; nothing but the file itself may be asked for."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, java_script_enabled=script
    )  # type: ignore[arg-type]
    page = context.new_page()
    seen = Opened(page)
    page.on("console", lambda message: seen.said.append(message.text))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.on("dialog", lambda dialog: (seen.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: seen.asked.append(request.url))
    page.goto(report.resolve().as_uri())
    try:
        yield seen
    finally:
        context.close()


def faults(seen: Opened) -> list[str]:
    """Everything wrong with an open page: noise, requests, sideways scrolling, accessibility."""
    found = [f"the console says: {text}" for text in seen.said]
    found += [f"the page asks for {url[:80]}" for url in seen.asked[1:] if not url.startswith("data:,")]
    found += seen.page.evaluate(_FAULTS)
    return found


def axe_faults(seen: Opened) -> list[str]:
    """Serious and critical violations that axe-core finds, every fold of the page opened."""
    from axe_playwright_python.sync_playwright import Axe

    seen.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    violations = Axe().run(seen.page).response["violations"]
    return [
        f"axe {one['id']}: {one['help']}: {one['nodes'][0]['html'][:110]} ({len(one['nodes'])} places)"
        for one in violations
        if one["impact"] in ("serious", "critical")
    ]


def first_screen_faults(seen: Opened, selectors: tuple[str, ...]) -> list[str]:
    """Which of these do not begin inside the viewport before any scrolling."""
    script = """selector => {
      const found = document.querySelector(selector)?.getBoundingClientRect();
      return found ? [found.top, found.height] : null;
    }"""
    height = seen.page.evaluate("innerHeight")
    found = []
    for selector in selectors:
        box = seen.page.evaluate(script, selector)
        if box is None or box[1] == 0 or box[0] > height - 40:
            found.append(f"{selector} is not on the first screen ({box})")
    return found


# What must also hold and axe-core does not ask: no sideways scrolling, links that lead somewhere, titles of charts,
# table heads, one h1; contrast (WCAG 2.2, 1.4.3) is here too, for SVG text.
_FAULTS = r"""
() => {
  const faults = [];
  const say = (what, element) => faults.push(`${what}: ${element.outerHTML.slice(0, 110)}`);
  const shown = e => e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true, contentVisibilityAuto: true });
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) faults.push(`scrolls sideways: ${page.scrollWidth} > ${page.clientWidth}`);
  if (!page.lang) faults.push("the page names no language");
  if (!document.title) faults.push("the page has no title");
  if (!document.querySelector("main")) faults.push("the page has no main landmark");

  const rgb = text => {
    const n = (text.match(/[\d.]+/g) || []).map(Number);
    if (text.startsWith("color(srgb")) return [n[0] * 255, n[1] * 255, n[2] * 255, n[3] ?? 1];
    return [n[0] || 0, n[1] || 0, n[2] || 0, n.length > 3 ? n[3] : 1];
  };
  const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const ground = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    return layers.reverse().reduce((under, top) => over(top, under), dark ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  const light = c => {
    const [r, g, b] = c.slice(0, 3).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const tested = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || tested.has(element)) continue;
    tested.add(element);
    if (["TITLE", "title", "STYLE", "SCRIPT", "OPTION"].includes(element.tagName) || !shown(element)) continue;
    if (element.closest(".visually-hidden")) continue;
    const style = getComputedStyle(element);
    const back = ground(element);
    const front = over(rgb(element.namespaceURI.endsWith("svg") ? style.fill : style.color), back);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    const points = parseFloat(style.fontSize);
    const large = points >= 24 || (points >= 18.66 && style.fontWeight >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) say(`contrast ${ratio.toFixed(2)}`, element);
  }

  const heads = [...document.querySelectorAll("h1,h2,h3,h4,h5,h6")].filter(e => !e.closest("[popover]"));
  if (document.querySelectorAll("h1").length !== 1) faults.push("not exactly one h1");
  heads.reduce((before, e) => {
    const level = Number(e.tagName[1]);
    if (level > before + 1) say(`heading jumps from h${before} to h${level}`, e);
    return level;
  }, 0);

  const name = e => (e.getAttribute("aria-label") || e.textContent || e.getAttribute("title") || "").trim();
  for (const e of document.querySelectorAll("a[href],button,summary")) if (!name(e)) say("no accessible name", e);
  for (const e of document.querySelectorAll("img")) if (!e.hasAttribute("alt")) say("no alt", e);
  for (const e of document.querySelectorAll("input,select"))
    if (!e.labels.length && !e.getAttribute("aria-label")) say("no label", e);
  for (const e of document.querySelectorAll("svg")) {
    const title = document.getElementById(e.getAttribute("aria-labelledby"));
    const named = title && e.contains(title) && title.textContent.trim();
    if (e.getAttribute("role") !== "img" || !named) say("no title", e);
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption) say("no caption", table);
    for (const th of table.querySelectorAll("th")) if (!th.scope) say("no scope", th);
    if (!table.tHead) say("no head", table);
  }
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) faults.push(`id used twice: ${id}`);
  const known = new Set(ids);
  for (const key of ["aria-labelledby", "popovertarget", "aria-describedby"])
    for (const e of document.querySelectorAll(`[${key}]`))
      if (!known.has(e.getAttribute(key))) say(`${key} leads nowhere`, e);
  for (const e of document.querySelectorAll("a[href^='#'],use")) {
    const to = e.getAttribute("href").slice(1);
    if (!known.has(to)) say("leads nowhere", e);
  }
  for (const e of document.querySelectorAll(".heat .box b, .heat .box small")) {
    const text = document.createRange();
    text.selectNodeContents(e);
    const edge = e.closest(".box").getBoundingClientRect().right;
    if (shown(e) && text.getBoundingClientRect().right > edge + 0.5) say("runs out of its box", e.parentElement);
  }
  for (const e of document.querySelectorAll("body *")) {
    const style = getComputedStyle(e);
    const scrolls = ["auto", "scroll"].includes(style.overflowX) || ["auto", "scroll"].includes(style.overflowY);
    const more = e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1;
    if (scrolls && more && e.tabIndex < 0 && shown(e)) say("scrolls but cannot be focused", e);
  }
  return [...new Set(faults)];
}
"""
