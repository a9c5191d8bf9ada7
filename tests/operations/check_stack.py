"""Whole stacks as an operator runs them, with the programs of etc/: HAProxy, Prometheus.

    check_stack.py haproxy|prometheus BUILD MODEL FOLDER NAME

BUILD has llmctl, llmd, llm-gateway; NAME begins the instances' names. Ends with 0, or with 77 where the
program is not installed, else says what is wrong.
"""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ETC = os.path.join(HERE, '..', '..', 'etc')
LONG = 120  # seconds: long for any machine


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def program(*names):
    for name in names:
        found = shutil.which(name) or shutil.which(name, path='/usr/sbin:/sbin')
        if found:
            return found
    print('there is no %s here: not checked' % names[0])
    sys.exit(77)


def wait(what, holds):
    end = time.monotonic() + LONG
    while not holds():
        if time.monotonic() > end:
            raise SystemExit('did not come: ' + what)
        time.sleep(0.1)


def ask(port, method, path, body=None):
    """Status and text of an answer that came whole."""
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=LONG)
    try:
        c.request(method, path, json.dumps(body) if body else None, {'Content-Type': 'application/json'} if body else {})
        r = c.getresponse()
        return r.status, r.read().decode()
    finally:
        c.close()


class Appliance:
    def __init__(self, build, model, folder, name, port):
        self.port, self.log = port, os.path.join(folder, name + '.log')
        self.command = [os.path.join(build, 'llmctl'), '-i', name, 'serve', '--model', model, '--served-model-name', 'm',
                        '--threads', '1', '--max-model-len', '128', '--port', str(port), '--drain-timeout', '30']
        self.start()

    def start(self):
        with open(self.log, 'a') as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        wait('an appliance, see\n' + open(self.log).read(), self.ready)

    def ready(self):
        if self.process.poll() is not None:
            raise SystemExit('an appliance has ended:\n' + open(self.log).read())
        try:
            return ask(self.port, 'GET', '/ready')[0] == 200
        except OSError:
            return False

    def served(self):
        """How many requests its engine has taken."""
        for line in ask(self.port, 'GET', '/metrics')[1].splitlines():
            if line.startswith('llmd_requests_total{'):
                return int(line.split()[-1])
        return 0

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(LONG):
            raise SystemExit('an appliance ended with %d:\n%s' % (self.process.returncode, open(self.log).read()))


class Load:
    """Clients that ask all the time, streaming and not; each answer must be whole."""

    def __init__(self, port, clients):
        self.port, self.answers, self.wrong, self.over = port, 0, [], False
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]
        for t in self.threads:
            t.start()

    def client(self, number):
        stream = number % 2 == 0
        body = {'model': 'm', 'prompt': [5, 6, 7 + number], 'max_tokens': 24, 'temperature': 0, 'stream': stream}
        while not self.over:
            try:
                status, text = ask(self.port, 'POST', '/v1/completions', body)
            except (OSError, http.client.HTTPException) as e:
                self.wrong.append(repr(e))
                continue
            whole = text.rstrip().endswith('data: [DONE]') and '"error"' not in text if stream else status == 200
            if status != 200 or not whole:
                self.wrong.append('%d %s' % (status, text[:300]))
            self.answers += 1

    def more(self, n):
        until = self.answers + n
        wait('%d answers; wrong: %s' % (until, self.wrong[:3]), lambda: self.answers >= until or self.wrong)

    def end(self):
        self.over = True
        for t in self.threads:
            t.join()
        if self.wrong:
            raise SystemExit('%d of %d requests were lost: %s' % (len(self.wrong), self.answers, self.wrong[:5]))
        return self.answers


def haproxy(build, model, folder, name):
    """One appliance after the other drains and restarts under load: no request is lost."""
    binary = program('haproxy')
    one, two = (Appliance(build, model, folder, '%s-%d' % (name, i), free_port()) for i in range(2))
    front, config = free_port(), os.path.join(folder, 'haproxy.cfg')
    text = open(os.path.join(ETC, 'haproxy', 'llmd-haproxy.cfg')).read()
    for old, new in ((':8000', front), (':8001', one.port), (':8002', two.port)):
        text = text.replace('127.0.0.1' + old, '127.0.0.1:%d' % new)
    # all of the load is one address: here it is to reach both
    text = text.replace('balance hash var(txn.who)', 'balance roundrobin').replace('hash-type consistent', '').replace('hash-balance-factor 150', '')
    with open(config, 'w') as f:
        f.write(text)
    with open(os.path.join(folder, 'haproxy.log'), 'w') as log:
        proxy = subprocess.Popen([binary, '-f', config, '-db'], stdout=log, stderr=log)
    try:
        def up():
            if proxy.poll() is not None:
                raise SystemExit('HAProxy has ended: ' + open(log.name).read())
            try:
                return ask(front, 'GET', '/v1/models')[0] == 200
            except OSError:
                return False
        wait('HAProxy', up)
        if ask(front, 'GET', '/metrics')[0] != 404:
            raise SystemExit('figures are shown to everybody')
        load = Load(front, 6)
        load.more(30)
        for appliance in (one, two):
            appliance.stop()
            load.more(30)
            appliance.start()
            wait('requests for the one that is back', lambda: appliance.served() > 10 or load.wrong)
        print('%d answers, none lost' % load.end())
    finally:
        proxy.kill()
        proxy.wait()
        for a in (one, two):
            a.process.poll() is None and a.stop()


def prometheus(build, model, folder, name):
    """It scrapes the gateway and evaluates every rule."""
    binary = program('prometheus')
    one = Appliance(build, model, folder, name, free_port())
    port = free_port()
    text = open(os.path.join(ETC, 'prometheus', 'llmd-prometheus.yml')).read()
    text = text.replace("'127.0.0.1:8000', '127.0.0.1:8001'", "'127.0.0.1:%d'" % one.port).replace('15s', '1s')
    with open(os.path.join(folder, 'prometheus.yml'), 'w') as f:
        f.write(text)
    shutil.copy(os.path.join(ETC, 'prometheus', 'llmd-rules.yml'), folder)
    with open(os.path.join(folder, 'prometheus.log'), 'w') as log:
        server = subprocess.Popen([binary, '--config.file=prometheus.yml', '--storage.tsdb.path=data', '--web.listen-address=127.0.0.1:%d' % port],
                                  cwd=folder, stdout=log, stderr=log)
    try:
        def query(expression):
            try:
                status, text = ask(port, 'GET', '/api/v1/query?query=' + expression)
            except OSError:
                return []
            return json.loads(text)['data']['result'] if status == 200 else []

        wait('a scrape', lambda: any(r['value'][1] == '1' for r in query('up')))
        for i in range(5):
            status, text = ask(one.port, 'POST', '/v1/completions', {'model': 'm', 'prompt': [5, 6, i], 'max_tokens': 20})
            if status != 200:
                raise SystemExit('%d %s' % (status, text))
        wait('the tokens', lambda: any(float(r['value'][1]) > 0 for r in query('vllm:generation_tokens_total')))
        wait('a quantile', lambda: any(r['value'][1] != 'NaN' for r in query(
            'histogram_quantile(0.95,sum%20by%20(le)(rate(vllm:time_to_first_token_seconds_bucket%5B1m%5D)))')))

        def rules():
            return json.loads(ask(port, 'GET', '/api/v1/rules')[1])['data']['groups'][0]['rules']
        wait('all rules', lambda: all(r['health'] != 'unknown' for r in rules()))
        wrong = [r for r in rules() if r['health'] != 'ok' or r['state'] == 'firing']
        if wrong or len(rules()) < 8:
            raise SystemExit('rules: %s' % wrong)
        print('%d rules evaluated' % len(rules()))
    finally:
        server.terminate()
        server.wait()
        one.process.poll() is None and one.stop()


if __name__ == '__main__':
    {'haproxy': haproxy, 'prometheus': prometheus}[sys.argv[1]](*sys.argv[2:])
