"use strict";
// For all pages, after query.js. The pages read without it; it adds filtering, keys, deep links and themes.
(() => {
  const $ = (id) => document.getElementById(id);
  const root = document.documentElement;
  const data = window.NPU_MATRIX;

  // ---- themes ----------------------------------------------------------------------------------------------
  const THEMES = ["", "light", "dark"];
  const memory = {
    get(store, name) { try { return store().getItem(name) || ""; } catch { return ""; } },
    set(store, name, value) { try { store().setItem(name, value); } catch { /* a private window keeps nothing */ } },
  };
  function setTheme(theme) {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    $("theme").textContent = say(theme || "system");
    $("theme").setAttribute("aria-label", say(`Theme: ${theme || "follow the system"}`));
  }
  function nextTheme() {
    const theme = THEMES[(THEMES.indexOf(root.dataset.theme || "") + 1) % THEMES.length];
    memory.set(() => localStorage, "npu-matrix-theme", theme);
    setTheme(theme);
  }

  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  const language = makeLanguage(window.NPU_MATRIX_WORDS);
  const { say } = language;
  const grid = data && $("grid") ? makeGrid(data, { $, make, memory, say }) : null;

  // ---- keys ------------------------------------------------------------------------------------------------
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName || "");
    if (event.key === "?" && !typing) $("help").showModal();
    else if (event.key === "t" && !typing) nextTheme();
    else if (!grid?.key(event, typing)) return;
    event.preventDefault();
  }

  // ---- copying ---------------------------------------------------------------------------------------------
  async function copy(button) {
    const text = button.dataset.copy;
    try { await navigator.clipboard.writeText(text); } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    button.textContent = say("copied");
    setTimeout(() => { button.textContent = say("copy"); }, 1500);
  }

  // ---- ages, and what changed since the last look ------------------------------------------------------------
  const UNITS = [["year", 31_536_000], ["month", 2_592_000], ["day", 86_400], ["hour", 3_600], ["minute", 60]];
  function ages() {
    const words = new Intl.RelativeTimeFormat(root.lang, { numeric: "auto", style: "short" });
    for (const time of document.querySelectorAll("time.ago")) {
      const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const [unit, length] = UNITS.find(([, length]) => seconds >= length) || ["minute", 60];
      if (seconds >= 0) time.textContent = words.format(-Math.floor(seconds / length), unit);
    }
  }
  function lastLook() {
    const note = $("last-look");
    if (!note?.dataset.run) return;
    const { run } = note.dataset;
    const seen = memory.get(() => sessionStorage, "npu-matrix-look") || memory.get(() => localStorage, "npu-matrix-look");
    memory.set(() => localStorage, "npu-matrix-look", run);
    if (!seen || seen === run) return;
    memory.set(() => sessionStorage, "npu-matrix-look", seen);
    note.hidden = false;
    note.lastElementChild.href = `changes.html#since=${encodeURIComponent(seen)}`;
    note.lastElementChild.textContent = `run ${seen}`;
  }

  // ---- start -----------------------------------------------------------------------------------------------
  function startCell() {
    const back = $("back");
    if (back) back.hash = memory.get(() => sessionStorage, "npu-matrix-grid");
    const reveal = () => {
      const target = location.hash.length > 1 && $(decodeURIComponent(location.hash.slice(1)));
      const closed = target && target.closest("details:not([open])");
      if (closed) { closed.open = true; target.scrollIntoView(); }
    };
    addEventListener("hashchange", reveal);
    // What went wrong stands at the end of a log.
    for (const log of document.querySelectorAll(".loglines")) {
      const end = () => { log.scrollTop = log.scrollHeight; };
      log.closest("details").addEventListener("toggle", end, { once: true });
      end();
    }
    reveal();
  }

  root.classList.add("js");
  const linked = new URLSearchParams(location.hash.slice(1)).get("theme");
  setTheme(THEMES.includes(linked) ? linked : memory.get(() => localStorage, "npu-matrix-theme"));
  $("theme").addEventListener("click", nextTheme);
  $("help-button").addEventListener("click", () => $("help").showModal());
  function setLanguage(code) {
    language.set(code);
    $("language").textContent = code === "zh" ? "English" : "中文";
    $("language").lang = code === "zh" ? "en" : "zh-CN";
    setTheme(root.dataset.theme || "");
    helpIn(code === "zh");
    ages();
    grid?.redraw();
    if (code === "zh") language.withReasons(() => { language.apply(); grid?.redraw(); });
  }
  const helpIn = (chinese) => { for (const part of document.querySelectorAll("#help .help-columns")) part.hidden = (part.lang === "en") === chinese; };
  $("language").addEventListener("click", () => {
    const code = language.isChinese() ? "en" : "zh";
    memory.set(() => localStorage, "npu-matrix-language", code);
    memory.set(() => sessionStorage, "npu-matrix-language", code);
    setLanguage(code);
  });
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", (event) => { const button = event.target.closest(".copy-button"); if (button) copy(button); });
  lastLook();
  // A link in a language leads to pages in this language.
  const asked = new URLSearchParams(location.hash.slice(1)).get("lang");
  if (asked) memory.set(() => sessionStorage, "npu-matrix-language", asked);
  const code = asked || memory.get(() => sessionStorage, "npu-matrix-language") || memory.get(() => localStorage, "npu-matrix-language") || (/^zh\b/.test(navigator.language) ? "zh" : "en");
  if (grid) { if (code === "zh") language.set(code); grid.start(); } else startCell();
  setLanguage(code === "zh" ? "zh" : "en");
  const compared = $("compared");
  if (compared) new MutationObserver(() => language.apply(compared)).observe(compared, { childList: true });
})();
