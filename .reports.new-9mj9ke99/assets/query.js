"use strict";
// The query language of the grid: the same words and the same answers as in a terminal (see query.py).
// makeQueries(data) gives { compile, select, order, QueryError }; data is what data/grid.js hands over.
const makeQueries = (data) => {
  // Places in a row of the grid's data (see grid.py).
  const [ID, TITLE, STACK, AXES, VERDICTS, CHANGES] = [0, 1, 3, 6, 7, 8];
  const ABSENT = "-";
  const [MAX_LENGTH, MAX_DEPTH] = [2000, 100];

  // or := and ("|" and)* ; and := not ("&"? not)* ; not := "!" not | "(" or ")" | term
  // A query is asked of every (row, check); a row is shown when one of its checks answers yes.
  const { status: STATUS, evidence: EVIDENCE, change: CHANGE } = data?.words ?? {};
  class QueryError extends Error {}

  function tokenize(text) {
    const found = [];
    const pattern = /\s+|([&|()]|!(?!=))|((?:"[^"]*"|!=|[^\s&|!()"])+)|(.)/gsy;
    for (let match; (match = pattern.exec(text)); ) {
      const at = match.index + 1;
      if (match[3]) throw new QueryError(match[3] === '"' ? `The quote at ${at} is not closed.` : `${match[3]} at ${at} is not expected.`);
      if (match[1] || match[2]) found.push({ text: match[1] || match[2], op: Boolean(match[1]), at });
    }
    return found;
  }

  function distance(a, b) {
    let row = Array.from({ length: b.length + 1 }, (_, i) => i);
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++) next[j] = Math.min(next[j - 1] + 1, row[j] + 1, row[j - 1] + (a[i - 1] !== b[j - 1]));
      row = next;
    }
    return row[b.length];
  }
  function known(word, words) {
    const [far, best] = words.map((w) => [distance(word, w), w]).sort((a, b) => a[0] - b[0])[0];
    return far <= 2 ? `Did you mean ${best}?` : `Known: ${words.slice(0, 24).join(", ")}.`;
  }

  // 0.9 before 0.10, 1.0rc1 before 1.0, 1.0 before 1.0+local before 1.0.post1 (see patterns.py).
  function natural(version) {
    const plus = version.indexOf("+");
    const [open, local] = plus < 0 ? [version, ""] : [version.slice(0, plus), version.slice(plus + 1)];
    const ranks = (open.match(/[0-9]+|[A-Za-z]+/g) || []).map((part) => (/^[0-9]/.test(part) ? [2, Number(part), ""] : [part.toLowerCase() === "post" ? 1 : -1, 0, part.toLowerCase()]));
    return [...ranks, ...(local ? [[1, -1, local]] : []), [0, 0, ""]];
  }
  function order(a, b) {
    const [left, right] = [natural(a), natural(b)];
    for (let i = 0; i < Math.min(left.length, right.length); i++) {
      for (let j = 0; j < 3; j++) if (left[i][j] !== right[i][j]) return left[i][j] < right[i][j] ? -1 : 1;
    }
    return left.length - right.length;
  }
  // `0.9` is 0.9 and 0.9.1 but not 0.90; words match anywhere.
  function sameVersion(value, wanted) {
    if (!/^\d/.test(wanted)) return value.includes(wanted);
    return value.startsWith(wanted) && !/\d/.test(/\d$/.test(wanted) ? value.charAt(wanted.length) : "");
  }
  // A commit or a dash is neither before nor after any version.
  const ordered = (holds) => (value, wanted) => /^[0-9]{1,4}(\.|$)/.test(value) && holds(order(value, wanted));
  const COMPARE = {
    ":": sameVersion, "=": (v, w) => v === w, "!=": (v, w) => v !== w, "<": ordered((n) => n < 0),
    "<=": ordered((n) => n <= 0), ">": ordered((n) => n > 0), ">=": ordered((n) => n >= 0),
  };

  const hay = [];
  function haystack(place) {
    return (hay[place] ??= [data.rows[place][ID], data.rows[place][TITLE],
      ...data.rows[place].slice(STACK, AXES).map((n) => data.values[n]),
      ...data.rows[place][AXES].map((n) => data.values[n] ?? "")].join("\n").toLowerCase());
  }

  const among = (table, word) => {
    if (!Object.hasOwn(table, word)) throw new QueryError(`There is no ${word}. ${known(word, Object.keys(table))}`);
    return table[word];
  };
  const verdict = (offset, codes) => (place, check) => check >= 0 && codes.includes(data.rows[place][VERDICTS][check * 2 + offset]);
  const change = (codes) => (place, check) => check >= 0 && Boolean(data.rows[place][CHANGES]) && codes.includes(data.rows[place][CHANGES][check]);
  const checkIs = (test) => { const hit = data.checks.map(test); return (_, check) => check >= 0 && hit[check]; };
  const valueIs = (slot, test) => {
    const hit = data.values.map((value) => test(value.toLowerCase()));
    return (place) => { const n = slot(data.rows[place]); return n >= 0 && hit[n]; };
  };

  function field(name, operator, value) {
    if (name === "status") return verdict(0, among(STATUS, value));
    if (name === "evidence") return verdict(1, among(EVIDENCE, value));
    if (name === "is") return change(among(CHANGE, value));
    if (name === "check") return checkIs((check) => check[0].toLowerCase().includes(value));
    if (name === "tier") return checkIs((check) => check[1] === value);
    if (name === "id") return (place) => data.rows[place][ID].toLowerCase().includes(value);
    const fact = ["stack", "device", "recipe"].indexOf(name);
    if (fact >= 0) return valueIs((row) => row[STACK + fact], (text) => text.includes(value));
    const axis = data.axes.findIndex((text) => text.toLowerCase() === name);
    if (axis < 0) {
      const names = ["status", "evidence", "check", "tier", "is", "id", "stack", "device", "recipe", ...data.axes];
      throw new QueryError(`There is no field ${name}. ${known(name, names)}`);
    }
    if (!Object.hasOwn(COMPARE, operator)) throw new QueryError(`${operator} is no comparison.`);
    return valueIs((row) => row[AXES][axis], (text) => COMPARE[operator](text, value));
  }
  function term(token) {
    const parts = /^([A-Za-z_][\w.-]*)(:|!=|[<>=]+)(.+)$/s.exec(token.text);
    if (parts) return field(parts[1].toLowerCase(), parts[2], parts[3].replaceAll('"', "").toLowerCase());
    const word = token.text.replaceAll('"', "").toLowerCase();
    if (!token.text.includes('"')) {
      if (Object.hasOwn(STATUS, word)) return verdict(0, STATUS[word]);
      if (Object.hasOwn(CHANGE, word)) return change(CHANGE[word]);
    }
    return (place) => haystack(place).includes(word);
  }

  function compile(text) {
    if (text.length > MAX_LENGTH) throw new QueryError(`The query is longer than ${MAX_LENGTH} characters.`);
    const list = tokenize(text);
    if (!list.length) return null;
    let at = 0, depth = 0;
    const op = (symbol) => list[at] && list[at].op && list[at].text === symbol;
    function unary() {
      const token = list[at++];
      if (!token) throw new QueryError("The query ends too early.");
      if (!token.op) return term(token);
      if (++depth > MAX_DEPTH) throw new QueryError("The query is nested too deep.");
      if (token.text === "!") { const inner = unary(); return (place, check) => !inner(place, check); }
      if (token.text !== "(") throw new QueryError(`${token.text} at ${token.at} is not expected here.`);
      const inner = either();
      if (!op(")")) throw new QueryError(`The ( at ${token.at} is not closed.`);
      at++;
      return inner;
    }
    function both() {
      let left = unary();
      while (list[at] && !op("|") && !op(")")) {
        if (op("&")) at++;
        const [a, b] = [left, unary()];
        left = (place, check) => a(place, check) && b(place, check);
      }
      return left;
    }
    function either() {
      let left = both();
      while (op("|")) {
        at++;
        const [a, b] = [left, both()];
        left = (place, check) => a(place, check) || b(place, check);
      }
      return left;
    }
    const test = either();
    if (list[at]) throw new QueryError(`${list[at].text} at ${list[at].at} is not expected here.`);
    return test;
  }

  function select(test) {
    const shown = [];
    let matches = 0;
    for (let place = 0; place < data.rows.length; place++) {
      const verdicts = data.rows[place][VERDICTS];
      let hits = 0, any = false;
      for (let check = 0; check < data.checks.length; check++) {
        if (verdicts[check * 2] === ABSENT) continue;
        any = true;
        if (!test || test(place, check)) hits++;
      }
      if (hits || (!any && (!test || test(place, -1)))) shown.push(place);
      matches += hits;
    }
    return { shown, matches };
  }

  return { compile, select, order, haystack, QueryError };
};
