"use strict";
// English and Chinese of all pages, before report.js. Pages are written in English; assets/words.js has the Chinese texts.
// Names, versions and commands (translate="no", code) stay as they are; so does a text without a translation.
const makeLanguage = (data) => {
  const SKIPPED = "[translate=no], code, pre, kbd, script, style, svg, textarea, dialog, .prose, .loglines, #rows, #head, #pivot-box, #language";
  const ATTRIBUTES = ["title", "aria-label", "placeholder"];
  // The grammar is that of chinese.py: how a text is taken apart, and forms with parts that differ.
  const { enumerations } = data.grammar;
  const [SENTENCE, CUT, QUOTED, PROSE] = [["sentence", ""], ["cut", "s"], ["quoted", "g"], ["prose", ""]].map(([name, flags]) => new RegExp(data.grammar[name], flags));
  // A search for the beginning is much faster than for the whole, and few texts begin alike.
  const pattern = ([start, english, ...chinese]) => [start, new RegExp(`^(?:${english})$`, "s"), ...chinese];
  const words = new Map(Object.entries(data.words));
  const patterns = data.patterns.map(pattern);
  const known = new Map();
  let chinese = false;

  // Whether a text may stay as it is inside a Chinese sentence: a name, a value or a quotation, with whole pairs of brackets.
  const isPart = (text, free) => !SENTENCE.test(text) && !/[()]/.test(withoutPairs(text)) && (free || !PROSE.test(text.replace(QUOTED, "")));
  const withoutPairs = (text) => { const rest = text.replace(/\([^()]*\)/g, ""); return rest === text ? text : withoutPairs(rest); };
  function translated(text) {
    if (words.has(text)) return words.get(text);
    const cut = CUT.exec(text);
    if (cut) return `${translated(cut[1]) ?? cut[1]}…（还有 ${cut[2]} 个字符）`;
    for (const [start, whole, form, free] of patterns) {
      const found = text.startsWith(start) ? whole.exec(text) : null;
      const parts = found && found.map((part, place) => (place ? translated(part) ?? translated(part.replace(/\.$/, "")) : null) ?? part);
      if (found && !found.some((part, place) => place && parts[place] === part && !isPart(part, free.includes(place - 1)))) return form.replace(/\{(\d)\}/g, (_, place) => parts[place]);
    }
    // A paragraph by its sentences, an enumeration by its parts.
    const paragraph = bySentences(text, "every");
    if (paragraph !== null) return paragraph;
    for (const [mark, chinese] of enumerations) {
      const parts = text.split(mark).map((part, _, all) => (all.length > 1 ? translated(part) : null));
      if (!parts.includes(null)) return parts.join(chinese);
    }
    return null;
  }
  // A paragraph of several sentences, of which every one or some have their Chinese.
  function bySentences(text, enough) {
    const sentences = text.split(SENTENCE);
    if (sentences.length === 1) return null;
    const said = sentences.map(sentence);
    return said[enough]((part) => part !== null) ? said.map((part, i) => part ?? sentences[i]).join(" ").replaceAll("。 ", "。") : null;
  }
  // A sentence; many are an entry of the list of words with a full stop.
  function sentence(text) {
    const bare = text.endsWith(".") ? translated(text.slice(0, -1)) : null;
    return translated(text) ?? (bare === null ? null : `${bare}。`);
  }
  function inChinese(text) {
    const bare = text.trim().replace(/\s+/g, " ");
    if (!bare) return text;
    if (!known.has(bare)) known.set(bare, translated(bare) ?? translated(bare.replace(/[.,:]$/, "")) ?? bySentences(bare, "some") ?? bare);
    const said = known.get(bare);
    return said === bare ? text : text.match(/^\s*/)[0] + said + text.match(/\s*$/)[0];
  }
  const say = (text) => (chinese ? inChinese(text) : text);

  // What a node said in English; a text that a script has set since then is new English.
  const before = new WeakMap();
  function turn(node, name, read, write) {
    const seen = before.get(node) || before.set(node, new Map()).get(node);
    const now = read();
    if (seen.get(name)?.[1] !== now) seen.set(name, [now, now]);
    const wanted = say(seen.get(name)[0]);
    if (wanted !== now) write(wanted);
    seen.get(name)[1] = wanted;
  }
  function apply(root = document.body) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, {
      acceptNode: (node) => (node.nodeType === 1 && node.matches(SKIPPED) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT),
    });
    for (let node = walker.currentNode; node; node = walker.nextNode()) {
      if (node.nodeType === 3) turn(node, "text", () => node.nodeValue, (text) => { node.nodeValue = text; });
      else for (const name of ATTRIBUTES) if (node.hasAttribute(name)) turn(node, name, () => node.getAttribute(name), (text) => node.setAttribute(name, text));
    }
    for (const node of root.querySelectorAll(".prose")) turn(node, "prose", () => whole(node), (text) => node.replaceChildren(...parts(text)));
    for (const term of document.querySelectorAll(".term")) explain(term);
  }
  // A text with commands in it, which have backticks in the list of words; it is translated as one text.
  const whole = (node) => [...node.childNodes].map((part) => (part.nodeName === "CODE" ? `\`${part.textContent}\`` : part.textContent)).join("");
  const parts = (text) => text.split(/`([^`\n]+)`/).map((part, i) => {
    if (i % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  });
  // A word of the glossary: its meaning is one hover, one tap or one Tab away.
  function explain(term) {
    const found = data.glossary[term.dataset.term];
    if (!found) return;
    term.dataset.meaning = (chinese ? found[2] : found[0]).replaceAll("`", "");
    term.tabIndex = 0;
    term.setAttribute("role", "button");
    term.setAttribute("aria-label", `${term.textContent}: ${term.dataset.meaning}`);
  }
  // The reasons and remedies of all checks, which only readers of Chinese load.
  let loading = null;
  function withReasons(done) {
    if (loading) return;
    loading = document.createElement("script");
    loading.src = document.querySelector('script[src$="assets/words.js"]').src.replace(/assets\/words\.js$/, "data/reasons.zh.js");
    loading.addEventListener("load", () => {
      for (const [english, form] of Object.entries(window.NPU_MATRIX_REASONS.words)) words.set(english, form);
      patterns.push(...window.NPU_MATRIX_REASONS.patterns.map(pattern));
      known.clear();
      if (chinese) done();
    });
    document.head.append(loading);
  }
  function set(code) {
    chinese = code === "zh";
    document.documentElement.lang = chinese ? "zh-CN" : "en";
    apply();
  }
  return { say, set, apply, withReasons, isChinese: () => chinese };
};
