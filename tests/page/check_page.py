"""The status page in headless Chromium, desktop and phone, light and dark.

    check_page.py FOLDER [URL]      pictures go to FOLDER; without URL a stand-in is the gateway

Ends with 0 if all holds, 77 where there is no browser, else with what is wrong.
"""
import os
import shutil
import subprocess
import sys

from browser import Browser

HERE = os.path.dirname(os.path.abspath(__file__))
VIEWS = [('desktop', 1280, 800, False), ('desktop-dark', 1280, 800, True), ('phone', 390, 844, False),
         ('phone-dark', 360, 740, True)]


def need(what, holds):
    if not holds:
        raise SystemExit('does not hold: ' + what)


def ask(tab, text, seconds=60):
    """By the keyboard alone: focus, words, Enter; waits for the end of the answer."""
    before = tab.value('document.querySelectorAll("#talk .assistant, #talk .wrong").length')
    tab.value('document.getElementById("text").focus()')
    tab.type(text)
    tab.key('Enter', 13, '\r')
    tab.wait('document.querySelectorAll("#talk .assistant, #talk .wrong").length > %d' % before)
    tab.wait('document.getElementById("stop").disabled', seconds)


def last(tab, kind):
    return tab.value('[...document.querySelectorAll("#talk .%s")].at(-1)?.textContent ?? ""' % kind)


def look_at(tab, folder, name):
    tab.wait('document.getElementById("state").textContent == "ready"')
    tab.wait('[...document.querySelectorAll("canvas")].every(c => c.getAttribute("aria-label"))')
    need('nothing is wider than the window: ' + name,
         tab.value('document.documentElement.scrollWidth <= document.documentElement.clientWidth'))
    need('every control has a name: ' + name, tab.value(
        '[...document.querySelectorAll("button, input, select, textarea")].every(e => '
        'e.textContent.trim() || e.labels?.length || e.getAttribute("aria-label"))'))
    need('something is drawn: ' + name, tab.value(
        '[...document.querySelectorAll("canvas")].every(c => '
        'c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(v => v))'))
    tab.picture(os.path.join(folder, name + '.png'))
    tab.picture(os.path.join(folder, name + '-whole.png'), whole=True)


def figures_are_right(tab):
    need('labels with escapes', tab.value('labelsOf(%r).model_name' % 'model_name="a\\"},\\\\b",engine="e"') == 'a"},\\b')
    cases = [('{edges: [1, 2, Infinity], counts: [0, 10, 10]}', 'null', .5, 1.5),
             ('{edges: [1, 2, Infinity], counts: [10, 30, 30]}', '{edges: [1, 2, Infinity], counts: [10, 10, 10]}', .95, 1.95),
             ('{edges: [1, 2, Infinity], counts: [0, 0, 3]}', 'null', .5, 2),
             ('{edges: [1, 2, Infinity], counts: [2, 4, 4]}', '{edges: [1, 2, Infinity], counts: [2, 4, 4]}', .5, None),
             ('{edges: [1, 2, Infinity], counts: [2, 4, 4]}', '{edges: [1, 2, Infinity], counts: [9, 9, 9]}', 1, 2)]
    for now, before, q, want in cases:
        got = tab.value('quantile(%s, %s, %g)' % (now, before, q))
        need('quantile %g of %s since %s is %s, not %s' % (q, now, before, want, got), got == want)


def with_the_stand_in(browser, url, folder):
    for name, width, height, dark in VIEWS:
        tab = browser.open(url, width, height, dark)
        tab.wait('!document.querySelector("dd").textContent.includes("–")')
        ask(tab, 'Hello?')
        need('markup stays text', last(tab, 'assistant').startswith('The page <b>must</b> show') and tab.value('document.title') == 'llmd')
        need('the time to the first token is said', 'first token' in tab.value('document.querySelector("#talk small").textContent'))
        tab.wait('points[chosen].length > 4', 30)
        look_at(tab, folder, name)
        need('no errors: %s' % tab.errors, not tab.errors)
        need('one host', len(tab.hosts) == 1)

    figures_are_right(tab)

    # stopping by the keyboard, and what the other model refuses
    tab.value('document.getElementById("text").focus()')
    tab.type('endless')
    tab.key('Enter', 13, '\r')
    tab.wait('[...document.querySelectorAll("#talk .assistant")].at(-1).textContent.includes("word5 ")')
    tab.key('Escape', 27)
    tab.wait('document.getElementById("stop").disabled')
    need('it says that it was stopped', 'stopped' in tab.value('[...document.querySelectorAll("#talk small")].at(-1).textContent'))
    tab.value('document.getElementById("model").value = "broken"; document.getElementById("model").dispatchEvent(new Event("change"))')
    tab.errors.clear()
    ask(tab, 'And you?')
    need('a refusal is shown as text', last(tab, 'wrong') == 'this model <i>refuses</i>')
    tab.value('document.getElementById("clear").click()')
    need('cleared', tab.value('document.querySelectorAll("#talk .user").length') == 0)


def with_a_gateway(browser, url, folder):
    for name, width, height, dark in (VIEWS[0], VIEWS[2]):
        tab = browser.open(url, width, height, dark)
        tab.value('document.getElementById("most").value = 24')
        ask(tab, 'What is the capital of France?', 120)
        need('an answer: %s' % last(tab, 'wrong'), last(tab, 'assistant').strip())
        tab.wait('!document.querySelector("dd").textContent.includes("–")')
        look_at(tab, folder, 'real-' + name)
        need('no errors: %s' % tab.errors, not tab.errors)
        need('one host', len(tab.hosts) == 1)


def main():
    program = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
    if not program:
        print('there is no chromium here: not checked')
        sys.exit(77)
    folder = sys.argv[1]
    if len(sys.argv) > 2:
        with Browser(program) as browser:
            with_a_gateway(browser, sys.argv[2], folder)
        return
    server = subprocess.Popen([sys.executable, os.path.join(HERE, 'stand_in.py'), '0'], stdout=subprocess.PIPE, text=True)
    try:
        url = 'http://127.0.0.1:%d/' % int(server.stdout.readline())
        with Browser(program) as browser:
            with_the_stand_in(browser, url, folder)
    finally:
        server.kill()
        server.wait()


if __name__ == '__main__':
    main()
