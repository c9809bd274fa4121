// The rows of a cleaned table: a list that can be filtered and sorted, and a place to check suspicious rows one by one.
// Decisions are kept in the browser and saved as the file that `bilevel clean --verified` reads.
(() => {
  const block = document.getElementById("data");
  if (!block) return;
  const data = JSON.parse(block.textContent);
  const $ = (id) => document.getElementById(id);
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const label = (place) => (place === null || place < 0 ? "" : data.classes[place]);
  const percent = (share) => (share === null ? "" : share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);
  const count = (number) => number.toLocaleString("en").replaceAll(",", "\u202f");
  const ROW = 0, GIVEN = 1, SUGGESTED = 2, QUALITY = 3, PROBABILITY = 4, ISSUE = 5, CELLS = 6;
  const byRow = new Map(data.rows.map((row) => [row[ROW], row]));

  // --- decisions, by row: [verdict, label or null, drawn at random] ---
  const store = `bilevel-decisions-${data.id}`;
  let decisions = new Map(data.decisions.map(([row, ...rest]) => [row, rest]));
  try {
    for (const [row, ...rest] of JSON.parse(localStorage.getItem(store) || "[]")) decisions.set(row, rest);
  } catch { /* a browser that keeps nothing: decisions live until the page is closed */ }
  const keep = () => {
    try {
      localStorage.setItem(store, JSON.stringify([...decisions].map(([row, rest]) => [row, ...rest])));
    } catch { /* as above */ }
  };
  const verdictText = (row) => {
    const found = decisions.get(row);
    if (!found) return "";
    const [verdict, right] = found;
    if (verdict === "right") return "label is right";
    if (verdict === "unsure") return "unsure";
    return right === null ? "wrong, correct label unknown" : `wrong: ${label(right)}`;
  };

  // --- the file that --verified reads ---
  const cell = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    if (/^[=+\-@\t\r]/.test(text) && !(text.trim() !== "" && isFinite(text))) text = `'${text}`; // no formulas
    return /[",\n\r]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const decisionsFile = () => {
    const lines = [["row", "given_label", "verified_label", "verdict", "drawn_at_random"]];
    for (const [row, [verdict, right, drawn]] of [...decisions].sort((a, b) => a[0] - b[0])) {
      const given = byRow.has(row) ? label(byRow.get(row)[GIVEN]) : "";
      lines.push([row, given, verdict === "right" ? given : label(right), verdict, drawn ? "yes" : "no"]);
    }
    return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
  };

  // --- one row at a time ---
  const card = $("card");
  let position = 0;
  const queue = data.queue.filter(([row]) => byRow.has(row));
  const progress = () => {
    const here = queue.filter(([row]) => decisions.has(row)).length;
    $("done").textContent =
      `${here} of ${queue.length} rows of this list are decided; ${decisions.size} decisions in all.`;
    $("save").disabled = decisions.size === 0;
    $("meter").value = here;
  };
  const facts = (row, reason) => {
    const against = new Map((reason ? reason.against : []).map(([name, strength]) => [name, strength]));
    const most = Math.max(...against.values(), 1e-9);
    const table = make("table", null, "facts");
    const head = table.createTHead().insertRow();
    const given = label(row[GIVEN]), suggested = label(row[SUGGESTED]);
    const titles = ["column", "this row"]; // of prose, words speak against the label
    if (!data.prose) titles.push("speaks against the label", `typical of ${given}`);
    if (!data.prose && suggested !== given) titles.push(`typical of ${suggested}`);
    for (const title of titles) { const th = make("th", title); th.scope = "col"; head.append(th); }
    const body = table.createTBody();
    const names = [...data.details].sort((a, b) => (against.get(b) || 0) - (against.get(a) || 0));
    const values = (data.cells[row[ROW]] || []);
    for (const name of names) {
      const line = body.insertRow();
      const th = make("th", name); th.scope = "row"; line.append(th);
      line.append(make("td", values[data.details.indexOf(name)]));
      if (data.prose) continue;
      const last = make("td");
      if (against.get(name) > 0) {
        const share = against.get(name) / most;
        const bar = make("span", null, "bar");
        bar.style.width = `${(5 * Math.max(0.04, share)).toFixed(2)}rem`;
        last.append(bar, make("span", share > 0.66 ? "strongly" : share > 0.25 ? "somewhat" : "a little", "spoken"));
        line.className = "against";
      }
      const typical = data.typical[name] || {};
      line.append(last, make("td", typical[row[GIVEN]] ?? ""));
      if (suggested !== given) line.append(make("td", typical[row[SUGGESTED]] ?? ""));
    }
    return table;
  };
  const show = () => {
    card.replaceChildren();
    if (!queue.length) { card.append(make("p", "There is no row left to check.")); progress(); return; }
    position = Math.min(Math.max(position, 0), queue.length - 1);
    const [number, drawn] = queue[position];
    const row = byRow.get(number), reason = data.reasons[number];
    const title = make("h3", `Row ${number}`);
    title.append(make("span", ` · ${position + 1} of ${queue.length}`, "note"));
    if (drawn) title.append(make("span", "drawn at random", "badge"));
    card.append(title);
    const labels = make("p", null, "labels");
    const box = (caption, text, name, chance) => {
      const part = make("span", null, "box");
      part.append(make("small", caption), make("b", text, name), make("small", chance));
      return part;
    };
    const same = row[SUGGESTED] === row[GIVEN];
    const given = same ? "label" : "label given";
    labels.append(box("given label", label(row[GIVEN]), given, `probability ${percent(row[QUALITY])}`));
    const chance = same ? "the same" : `probability ${percent(row[PROBABILITY])}`;
    labels.append(box("suggested label", label(row[SUGGESTED]), "label", chance));
    card.append(labels);
    const state = make("p", verdictText(number) ? `Decided: ${verdictText(number)}` : "Not decided yet.", "state");
    card.append(state);
    if (reason && data.prose && reason.against.length) {
      const words = reason.against.map(([word]) => word).join(", ");
      card.append(make("p", `Words that speak against “${label(row[GIVEN])}”: ${words}`));
    }
    if (reason && reason.nearest.length) {
      const near = make("p", "Nearest checked rows: ");
      reason.nearest.forEach(([name, right], i) => {
        near.append(make("span", `${i ? ", " : ""}${name} is `), make("span", label(right), "label"));
      });
      card.append(near);
    }
    const scroll = make("div", null, "scroll inner");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `Cells of row ${number}`);
    scroll.append(facts(row, reason));
    card.append(scroll);
    $("accept").disabled = same;
    $("accept").firstChild.textContent = same ? "Wrong: suggested label " : `Wrong: it is ${label(row[SUGGESTED])} `;
    $("right").firstChild.textContent = `Right: it is ${label(row[GIVEN])} `;
    $("other").value = "";
    progress();
  };
  const say = (text) => { $("live").textContent = text; };
  const decide = (verdict, right) => {
    if (!queue.length) return;
    const [number, drawn] = queue[position];
    decisions.set(number, [verdict, right, drawn]);
    keep();
    const text = `Row ${number}: ${verdictText(number)}.`;
    if (position < queue.length - 1) position += 1;
    show(); list();
    const next = queue[position][0];
    const [given, suggested] = [GIVEN, SUGGESTED].map((part) => label(byRow.get(next)[part]));
    say(`${text} Now row ${next}: given ${given}, suggested ${suggested}.`);
  };
  const actions = {
    right: () => decide("right", byRow.get(queue[position][0])[GIVEN]),
    accept: () => { if (!$("accept").disabled) decide("wrong", byRow.get(queue[position][0])[SUGGESTED]); },
    wrong: () => decide("wrong", null),
    unsure: () => decide("unsure", null),
    undo: () => {
      decisions.delete(queue[position][0]); keep(); show(); list();
      say(`Row ${queue[position][0]} is open again.`);
    },
    back: () => { position -= 1; show(); say(`Row ${queue[position][0]}`); },
    forward: () => { position += 1; show(); say(`Row ${queue[position][0]}`); },
  };
  const choose = (place) => {
    const given = byRow.get(queue[position][0])[GIVEN];
    decide(place === given ? "right" : "wrong", place);
  };
  if (card) {
    for (const [name, act] of Object.entries(actions)) $(name).addEventListener("click", act);
    $("other").addEventListener("change", (event) => {
      if (event.target.value !== "") choose(Number(event.target.value));
    });
    const keys = { r: "right", s: "accept", w: "wrong", u: "unsure", z: "undo",
      ArrowLeft: "back", ArrowRight: "forward", k: "back", j: "forward" };
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !queue.length) return;
      if (event.target.closest("input, select, textarea, [contenteditable]")) return;
      if (event.key.startsWith("Arrow") && event.target.closest(".scroll")) return; // arrows scroll a table
      if (/^[1-9]$/.test(event.key) && Number(event.key) <= data.classes.length) choose(Number(event.key) - 1);
      else if (keys[event.key]) actions[keys[event.key]]();
      else return;
      event.preventDefault();
    });
    $("save").addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([decisionsFile()], { type: "text/csv" }));
      link.download = data.file;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      say(`${decisions.size} decisions were saved as ${data.file}.`);
    });
    $("meter").max = Math.max(1, queue.length);
  }

  // --- the list of rows ---
  const PAGE = 100;
  let shown = PAGE, order = QUALITY, direction = 1;
  const headings = Array.from($("rows").tHead.rows[0].cells);
  const places = [ROW, GIVEN, SUGGESTED, QUALITY];
  const key = (row, place) => {
    if (place === GIVEN || place === SUGGESTED) return label(row[place]);
    if (place < CELLS) return row[place];
    const text = row[CELLS][place - CELLS], number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
      : a === null || a === "" ? 1 : b === null || b === "" ? -1
      : String(a).localeCompare(String(b), undefined, { numeric: true });
  const list = () => {
    const wanted = $("class").value, words = $("search").value.trim().toLowerCase(), only = $("only").checked;
    const found = data.rows.filter((row) =>
      (!only || row[ISSUE]) && (wanted === "" || label(row[GIVEN]) === data.classes[wanted]) &&
      (words === "" || [row[ROW], label(row[GIVEN]), label(row[SUGGESTED]), ...row[CELLS]]
        .some((text) => String(text ?? "").toLowerCase().includes(words))));
    found.sort((a, b) => direction * compare(key(a, order), key(b, order)) || a[ROW] - b[ROW]);
    const lines = found.slice(0, shown).map((row) => {
      const line = document.createElement("tr");
      const number = make("td", row[ROW], "number"); number.dataset.number = row[ROW];
      const given = make("td"), suggested = make("td");
      given.append(make("span", label(row[GIVEN]), row[ISSUE] ? "label given" : "label"));
      suggested.append(make("span", label(row[SUGGESTED]), "label"));
      const quality = make("td", percent(row[QUALITY]), "number"); quality.dataset.number = row[QUALITY];
      line.append(number, given, suggested, quality);
      for (const text of row[CELLS]) {
        const numeric = text !== "" && text !== null && !Number.isNaN(Number(text));
        line.append(make("td", text, numeric ? "number" : ""));
      }
      if ($("rows").dataset.decided) line.append(make("td", verdictText(row[ROW])));
      for (const each of line.cells) each.title = each.textContent; // long cells are cut
      return line;
    });
    $("rows").tBodies[0].replaceChildren(...lines);
    $("found").textContent =
      `${count(found.length)} of ${count(data.total)} rows; ${count(Math.min(shown, found.length))} are shown.`;
    $("more").hidden = found.length <= shown;
  };
  headings.forEach((heading, place) => {
    const button = heading.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const chosen = place < places.length ? places[place] : CELLS + place - places.length;
      direction = chosen === order ? -direction : 1;
      order = chosen;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      list();
    });
  });
  for (const name of ["class", "search", "only"]) $(name).addEventListener("input", () => { shown = PAGE; list(); });
  $("more").addEventListener("click", () => { shown += 5 * PAGE; list(); });
  if (card) show();
  list();
})();
