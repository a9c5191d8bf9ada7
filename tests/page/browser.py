"""Headless Chromium over its debugging pipe: no package is needed, only the browser.

    with Browser('chromium') as b:
        tab = b.open('http://...', 390, 844, dark=True)
        tab.wait('document.title == "llmd"')
        tab.picture('page.png')

Console errors, exceptions and failed loads of a tab are kept in tab.errors.
"""
import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time


class Browser:
    def __init__(self, program):
        self.home = tempfile.mkdtemp(prefix='browser-')
        to_us, from_browser = os.pipe()
        to_browser, from_us = os.pipe()
        command = [program, '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
                   '--no-first-run', '--disable-background-networking', '--disable-component-update',
                   '--disable-extensions', '--hide-scrollbars', '--remote-debugging-pipe', '--user-data-dir=' + self.home]
        # the browser reads its commands from descriptor 3 and writes to 4; ours are moved out of their way
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_browser, from_browser)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4),
                                        preexec_fn=lambda: (os.dup2(theirs[0], 3), os.dup2(theirs[1], 4)),
                                        env=dict(os.environ, HOME=self.home), start_new_session=True)
        for fd in (to_browser, from_browser, *theirs):
            os.close(fd)
        self.read = os.fdopen(to_us, 'rb', buffering=0)
        self.write = os.fdopen(from_us, 'wb', buffering=0)
        self.rest, self.number, self.tabs = b'', 0, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.write.close()  # the end of its commands ends it
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.read.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def message(self):
        while b'\0' not in self.rest:
            got = self.read.read(1 << 16)
            if not got:
                raise SystemExit('the browser has ended')
            self.rest += got
        text, self.rest = self.rest.split(b'\0', 1)
        m = json.loads(text)
        if m.get('sessionId') in self.tabs:
            self.tabs[m['sessionId']].saw(m)
        return m

    def call(self, method, session=None, **params):
        self.number += 1
        command = {'id': self.number, 'method': method, 'params': params}
        if session:
            command['sessionId'] = session
        self.write.write(json.dumps(command).encode() + b'\0')
        while True:
            m = self.message()
            if m.get('id') == self.number:
                if 'error' in m:
                    raise SystemExit('%s: %s' % (method, m['error']))
                return m['result']

    def open(self, url, width, height, dark=False):
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        tab = self.tabs[session] = Tab(self, session)
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            tab.call(domain + '.enable')
        tab.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=2 if width < 600 else 1,
                 mobile=width < 600)
        tab.call('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}])
        tab.call('Page.navigate', url=url)
        tab.wait('document.readyState == "complete" && location.href != "about:blank"')
        return tab


class Tab:
    def __init__(self, browser, session):
        self.browser, self.session, self.errors, self.hosts = browser, session, [], set()

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def saw(self, m):
        p = m.get('params', {})
        if m.get('method') == 'Runtime.exceptionThrown':
            self.errors.append(json.dumps(p['exceptionDetails'])[:500])
        elif m.get('method') == 'Runtime.consoleAPICalled' and p['type'] in ('error', 'warning', 'assert'):
            self.errors.append(json.dumps(p['args'])[:500])
        elif m.get('method') == 'Log.entryAdded' and p['entry']['level'] in ('error', 'warning'):
            self.errors.append('%s %s' % (p['entry']['text'], p['entry'].get('url', '')))
        elif m.get('method') == 'Network.requestWillBeSent' and p['request']['url'].startswith('http'):
            self.hosts.add(p['request']['url'].split('/')[2])

    def value(self, expression):
        r = self.call('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in r:
            raise SystemExit('%s: %s' % (expression, r['exceptionDetails']))
        return r['result'].get('value')

    def wait(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > end:
                raise SystemExit('did not come: %s; the page says: %s; errors: %s' %
                                 (expression, self.value('document.body.innerText')[:2000], self.errors))
            time.sleep(0.05)

    def key(self, key, code, text=''):
        for kind in ('keyDown', 'keyUp'):
            self.call('Input.dispatchKeyEvent', type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text if kind == 'keyDown' else '')

    def type(self, text):
        self.call('Input.insertText', text=text)

    def picture(self, path, whole=False):
        data = self.call('Page.captureScreenshot', format='png', captureBeyondViewport=whole)['data']
        with open(path, 'wb') as f:
            f.write(base64.b64decode(data))
