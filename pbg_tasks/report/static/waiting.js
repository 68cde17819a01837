// Asks for the page in whose place this outline stands, and puts it there.
"use strict";

const PROBLEMS = {
  401: "You are signed out: sign in to Airflow and open the page again.",
  403: "You may not see this page.",
};

// Opening the document anew would stop a link that was followed meanwhile.
const leaving = new AbortController();
addEventListener("beforeunload", () => leaving.abort());

async function showPage() {
  try {
    const answer = await fetch(location.href, { credentials: "same-origin", cache: "no-store", signal: leaving.signal });
    if (!answer.headers.get("Content-Type")?.startsWith("text/html")) throw new Error(PROBLEMS[answer.status] ?? `Airflow answered ${answer.status}; reload the page to try again.`);
    const html = await answer.text();
    // A page has the policy of its outline, which lets nothing run but the files of these pages.
    document.open();
    document.write(html);
    document.close();
    if (location.hash) addEventListener("load", () => document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView(), { once: true });
  } catch (error) {
    if (leaving.signal.aborted) return;
    const problem = document.getElementById("waiting-problem");
    if (!problem) throw error;
    problem.textContent = error instanceof TypeError ? "Airflow does not answer; reload the page to try again." : error.message;
    problem.hidden = false;
  }
}

showPage();
