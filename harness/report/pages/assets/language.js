"use strict";
// English and Chinese of all pages, before report.js. Pages are written in English; assets/words.js has the Chinese texts.
// Names, versions and commands (translate="no", code) stay as they are; so does a text without a translation.
const makeLanguage = (data) => {
  const SKIPPED = "[translate=no], code, pre, kbd, script, style, svg, textarea, dialog, .prose, .loglines, #rows, #head, #pivot-box, #language";
  // Between two sentences; and a text of which only the beginning is shown.
  const SENTENCE = /(?<=[.!?]) +(?=[A-Z0-9])/;
  const CUT = /^(.*)… \(([0-9,]+) more characters\)$/s;
  const ATTRIBUTES = ["title", "aria-label", "placeholder"];
  // {#} is a number, {} any text, which is translated too, {ID} the name of a rule, {name} a text without blanks, {s} and {was} endings of a plural.
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const PART = /(\{(?:#|s|was|ID|name)?\})/;
  const expression = (english) => english.split(PART).map((part) => ({ "{#}": "([0-9][0-9,]*)", "{ID}": "([A-Z][A-Z0-9-]+)", "{name}": "(\\S+)", "{}": "(.+?)", "{s}": "s?", "{was}": "(?:was|were)" })[part] ?? escaped(part)).join("");
  // A search for the beginning is much faster than for the whole, and few texts begin alike.
  const pattern = ([english, chinese]) => [english.slice(0, english.search(/\{|$/)), new RegExp(`^${expression(english)}$`, "s"), chinese];
  const words = new Map(Object.entries(data.words));
  const patterns = data.patterns.map(pattern);
  const known = new Map();
  let chinese = false;

  // A text that goes on into another sentence, or that splits a pair of brackets, is no part of a pattern.
  const isPart = (text) => !SENTENCE.test(text) && !/[()]/.test(withoutPairs(text));
  const withoutPairs = (text) => { const rest = text.replace(/\([^()]*\)/g, ""); return rest === text ? text : withoutPairs(rest); };
  function translated(text) {
    if (words.has(text)) return words.get(text);
    const cut = CUT.exec(text);
    if (cut) return `${translated(cut[1]) ?? cut[1]}…（还有 ${cut[2]} 个字符）`;
    for (const [start, whole, form] of patterns) {
      const found = text.startsWith(start) ? whole.exec(text) : null;
      const parts = found && found.map((part, place) => (place ? translated(part) ?? translated(part.replace(/\.$/, "")) : null) ?? part);
      if (found && !found.some((part, place) => place && parts[place] === part && !isPart(part))) return form.replace(/\{(\d)\}/g, (_, place) => parts[place]);
    }
    // A paragraph by its sentences, an enumeration by its parts.
    const sentences = text.split(SENTENCE);
    const said = sentences.length > 1 ? sentences.map(sentence) : [];
    if (said.some((part) => part !== null)) return said.map((part, i) => part ?? sentences[i]).join(" ").replaceAll("。 ", "。");
    const parts = text.split(", ").map((part, _, all) => (all.length > 1 ? translated(part) : null));
    return parts.includes(null) ? null : parts.join("，");
  }
  // A sentence; many are an entry of the list of words with a full stop.
  function sentence(text) {
    const bare = text.endsWith(".") ? translated(text.slice(0, -1)) : null;
    return translated(text) ?? (bare === null ? null : `${bare}。`);
  }
  function inChinese(text) {
    const bare = text.trim().replace(/\s+/g, " ");
    if (!bare) return text;
    if (!known.has(bare)) known.set(bare, translated(bare) ?? translated(bare.replace(/[.,:]$/, "")) ?? bare);
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
      const forms = Object.entries(window.NPU_MATRIX_REASONS);
      for (const [english, form] of forms) if (!english.includes("{")) words.set(english, form);
      // The form with the most words of its own comes first.
      const literal = ([english]) => english.split(PART).filter((_, place) => place % 2 === 0).join("").length;
      patterns.push(...forms.filter(([english]) => english.includes("{")).sort((a, b) => literal(b) - literal(a)).map(pattern));
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
