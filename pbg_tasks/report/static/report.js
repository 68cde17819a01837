// Draws the plots of a page, sorts its tables, and asks for news while a run is under way.
"use strict";

const POLL_MILLISECONDS = 3000;
const PATIENCE_MILLISECONDS = 30000;
const TYPING_MILLISECONDS = 200;

// --- plots -----------------------------------------------------------------------------------------------------------

/** Return what the theme makes of a named colour; only a colour in use is computed. */
function colour(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Replace names of colours, such as "--c1", by what the theme makes of them; other texts are shown as they stand. */
function inTheme(value) {
  if (typeof value === "string") return /^--[a-z0-9]+$/.test(value) ? colour(value) : asText(value);
  if (Array.isArray(value)) return value.map(inTheme);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, inTheme(inner)]));
}

/** Escape a text for plotly.js, which makes links and styles of the markup in names. */
function asText(value) {
  return value.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

function axis(given) {
  const line = colour("--line");
  return {
    gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, fixedrange: true, ticks: "",
    ...given, title: { ...given.title, standoff: 8, font: { size: 12, color: colour("--soft") } },
  };
}

function draw(canvas) {
  if (typeof Plotly === "undefined") return;
  const figure = inTheme(JSON.parse(canvas.dataset.figure));
  const layout = {
    ...figure.layout,
    xaxis: axis(figure.layout.xaxis), yaxis: axis(figure.layout.yaxis),
    margin: { l: 8, r: 8, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text") },
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, hovermode: "closest", dragmode: false,
  };
  Plotly.react(canvas, figure.data, layout, { displayModeBar: false, responsive: true });
}

/** Forget a plot that is about to go: the window would keep it for good, to pass a new size to it. */
function erase(canvas) {
  if (typeof Plotly !== "undefined") Plotly.purge(canvas);
}

function drawAll(root) {
  root.querySelectorAll("[data-figure]").forEach(draw);
}

/** Mark the entities of a map whose names begin with a text, whatever the case; all without one. */
function findOnMap(field) {
  const canvas = document.getElementById(field.dataset.map);
  if (!canvas || typeof Plotly === "undefined") return;
  const prefix = field.value.trim().toLowerCase();
  const found = new Set();
  const marked = JSON.parse(canvas.dataset.figure).data.map((trace) => {
    if (!prefix) return null;
    const places = trace.text.flatMap((name, place) => (name.toLowerCase().startsWith(prefix) ? [place] : []));
    places.forEach((place) => found.add(trace.text[place]));
    return places;
  });
  Plotly.restyle(canvas, { selectedpoints: marked, unselected: { marker: { opacity: 0.06 } } });
  const names = [...found];
  const more = names.length > 5 ? ` and ${names.length - 5} more` : "";
  field.form.querySelector("output").textContent = prefix ? `${names.slice(0, 5).join(", ") || "none in the sample"}${more}` : "";
}

// --- tables ----------------------------------------------------------------------------------------------------------

function sortKey(row, column) {
  const cell = row.cells[column];
  const value = cell.dataset.value;
  if (value === undefined) return cell.textContent.trim().toLowerCase();
  return value === "" ? Number.NEGATIVE_INFINITY : Number(value);
}

function sortBy(table, column) {
  const heads = table.tHead.rows[0].cells;
  const descending = heads[column].getAttribute("aria-sort") !== "descending";
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [sortKey(row, column), row]);
  rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (descending ? -1 : 1));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function makeSortable(root) {
  root.querySelectorAll("table.sortable").forEach((table) => {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sortBy(table, column));
      head.replaceChildren(button);
    });
  });
}

// --- news ------------------------------------------------------------------------------------------------------------

/** Put new HTML into a section; what was opened stays open, and the focus where it was. */
function refresh(section, html) {
  const opened = [...section.querySelectorAll("details[open]")].map((details) => details.id);
  const focused = section.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  section.querySelectorAll("[data-figure]").forEach(erase);
  section.innerHTML = html;
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  if (focused) section.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  makeSortable(section);
  drawAll(section);
}

function tellAges() {
  document.querySelectorAll("time[data-since]").forEach((time) => {
    const seconds = Math.max(0, Math.round((Date.now() - Date.parse(time.dataset.since)) / 1000));
    time.textContent = seconds < 90 ? `${seconds} s ago` : `${Math.round(seconds / 60)} min ago`;
  });
}

async function poll(url, version, shown) {
  let news = { version, finished: false, sections: {} };
  let wait = POLL_MILLISECONDS;
  try {
    const answer = await fetch(`${url}${url.includes("?") ? "&" : "?"}since=${encodeURIComponent(version)}`, { credentials: "same-origin" });
    if (answer.status === 401 || answer.status === 403) return; // signed out: the page stays as it is
    if (answer.ok) news = await answer.json();
    else wait = PATIENCE_MILLISECONDS;
  } catch {
    wait = PATIENCE_MILLISECONDS; // the server is away: it may come back
  }
  for (const [name, html] of Object.entries(news.sections)) {
    const section = document.getElementById(name);
    if (section && shown.get(name) !== html) refresh(section, html);
    shown.set(name, html);
  }
  tellAges();
  if (!news.finished) setTimeout(poll, document.hidden ? PATIENCE_MILLISECONDS : wait, url, news.version, shown);
}

// --- graphs ----------------------------------------------------------------------------------------------------------

/** Fill in the rows of graphs, some at a time; those that need a person come first. */
async function loadStandings() {
  const rows = [...document.querySelectorAll("tr[data-load]")];
  const waiting = [...rows];
  const work = async () => {
    for (let row = waiting.shift(); row; row = waiting.shift()) await loadStanding(row);
  };
  await Promise.all(Array.from({ length: 4 }, work));
  summarise();
}

async function loadStanding(row) {
  try {
    const answer = await fetch(row.dataset.load, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(answer.status === 403 ? "You may not see its runs." : "Its store cannot be read.");
    const news = await answer.json();
    row.innerHTML = news.html;
    row.dataset.rank = news.rank;
    row.dataset.tone = news.tone;
    row.className = news.tone === "bad" ? "bad" : "";
  } catch (error) {
    row.querySelectorAll("td").forEach((cell) => cell.replaceChildren());
    row.cells[1].textContent = error instanceof TypeError ? "Airflow does not answer." : error.message;
    row.dataset.rank = 2;
    row.dataset.tone = "unseen";
  }
  const body = row.parentElement;
  const rest = [...body.rows].sort((a, b) => a.dataset.rank - b.dataset.rank);
  body.append(...rest);
}

function summarise() {
  const summary = document.getElementById("standing-summary");
  const rows = [...document.querySelectorAll("#standing tbody tr")];
  if (!summary || !rows.length) return;
  const count = (...tones) => rows.filter((row) => tones.includes(row.dataset.tone)).length;
  const needed = count("bad", "warn");
  const unseen = count("unseen");
  const rest = `${unseen ? `, ${unseen} cannot be seen` : ""}${count("busy") ? `, ${count("busy")} under way` : ""}`;
  const none = unseen ? `${rows.length - unseen} of ${rows.length} need no one` : `${rows.length === 1 ? "The graph needs" : `All ${rows.length} graphs need`} no one`;
  summary.textContent = `${needed ? `${needed} of ${rows.length} need${needed === 1 ? "s" : ""} a person` : none}${rest}`;
  summary.className = count("bad") ? "need bad" : needed || unseen ? "need warn" : "need good";
}

/** Begin a night through Airflow's own interface, with the rights of the user; a second click confirms the first. */
async function begin(button) {
  const status = button.parentElement.querySelector("[role=status]");
  const { api, runs } = button.closest("[data-api]").dataset;
  const snapshot = button.dataset.begin;
  if (!button.dataset.sure) {
    button.dataset.sure = "yes";
    button.textContent = `Really begin ${snapshot}?`;
    return;
  }
  button.disabled = true;
  try {
    const answer = await fetch(api, {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json" },
      // Airflow's list of runs shows ids, and hides partition keys until their column is switched on.
      body: JSON.stringify({
        logical_date: null,
        partition_key: snapshot,
        dag_run_id: `manual__${new Date().toISOString().replace("Z", "+00:00")}__${snapshot.replaceAll("..", ".")}`,
      }),
    });
    const found = await answer.json();
    if (!answer.ok) throw new Error(answer.status === 403 ? "You may not begin runs of this DAG." : String(found.detail));
    const link = document.createElement("a");
    link.href = `${runs}/${encodeURIComponent(found.dag_run_id)}`;
    link.dataset.airflow = "";
    link.textContent = "begun";
    button.textContent = `Begin ${snapshot}`;
    status.replaceChildren(link);
  } catch (error) {
    status.textContent = error.message;
    button.disabled = false;
  }
}

// --- look-up ---------------------------------------------------------------------------------------------------------

let typed = 0;

/** Offer names that begin with what was typed, once the typing rests; an answer to an earlier text is dropped. */
function suggest(field) {
  const turn = ++typed;
  setTimeout(async () => {
    const prefix = field.value.trim();
    if (turn !== typed || !prefix || [...field.list.options].some((option) => option.value === prefix)) return;
    const query = new URLSearchParams({ prefix });
    for (const name of ["type", "release"]) if (field.form.elements[name]?.value) query.set(name, field.form.elements[name].value);
    try {
      const answer = await fetch(`${field.dataset.names}?${query}`, { credentials: "same-origin" });
      if (!answer.ok || turn !== typed) return;
      const { names } = await answer.json();
      field.list.replaceChildren(...names.map((name) => new Option(name, name)));
    } catch {
      // no suggestions: the look-up itself gives the reason
    }
  }, TYPING_MILLISECONDS);
}

/** Open Airflow's own pages and the documentation from Airflow's window: its frame would show Airflow once more, and opens
 *  no other window. */
function openInAirflow(event) {
  const link = event.target.closest?.("a[data-airflow]");
  if (!link || window.top === window) return;
  try {
    const outer = window.top.document.createElement("a");
    Object.assign(outer, { href: link.href, target: link.target, rel: link.rel });
    window.top.document.body.append(outer);
    outer.click();
    outer.remove();
    event.preventDefault();
  } catch {
    // the window belongs to another site: the link opens here
  }
}

// --- start -----------------------------------------------------------------------------------------------------------

makeSortable(document);
tellAges();
loadStandings();
document.addEventListener("click", openInAirflow);
document.querySelectorAll("[data-begin]").forEach((button) => button.addEventListener("click", () => begin(button)));
document.addEventListener("input", (event) => event.target.dataset?.map && findOnMap(event.target));
document.addEventListener("input", (event) => event.target.dataset?.names && suggest(event.target));
document.addEventListener("submit", (event) => event.target.getAttribute("role") === "search" && event.preventDefault());
addEventListener("DOMContentLoaded", () => drawAll(document)); // plotly.js comes last, so that nothing waits for it
document.addEventListener("theme", () => drawAll(document));
if (document.body.dataset.live) poll(document.body.dataset.live, "", new Map());
