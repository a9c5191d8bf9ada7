"""A stand-in for the gateway: the page, figures that move, and a chat that streams canned words.

    stand_in.py PORT        PORT 0: any; prints the port

Two models; "broken" refuses to answer. What it streams holds HTML, which must stay text.
"""
import json
import math
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = os.path.join(os.path.dirname(__file__), '..', '..', 'tools', 'gateway', 'page.html')
WORDS = 'The page <b>must</b> show this as text. <script>document.title = "broken"</script> '.split(' ')
START = time.time() - 300  # as if it had run for a while
EDGES = [2.0 ** (k / 4) * 1e-9 for k in range(64, 140)]


def histogram(name, labels, center, count):
    """So many durations spread around center seconds."""
    lines, seen = ['# TYPE %s histogram' % name], 0
    for edge in EDGES:
        seen = int(count / (1 + (center / edge) ** 4))
        lines.append('%s_bucket{%s,le="%.9g"} %d' % (name, labels, edge, seen))
    lines.append('%s_bucket{%s,le="+Inf"} %d' % (name, labels, count))
    lines.append('%s_sum{%s} %.6f' % (name, labels, count * center))
    lines.append('%s_count{%s} %d' % (name, labels, count))
    return lines


def metrics():
    t = time.time() - START
    lines = []
    for model, size in (('smollm2-360m-instruct', 1.0), ('broken', 0.2)):
        labels = 'model_name="%s",engine="e"' % model
        wave = 1 + 0.5 * math.sin(t / 7)
        figures = {
            'llmd_up': 1, 'llmd_ready': 1, 'llmd_clients': 3, 'llmd_sessions': 2,
            'llmd_start_time_seconds': START, 'vllm:num_requests_running': round(8 * size * wave),
            'vllm:num_requests_waiting': round(max(0, 5 * size * math.sin(t / 5))),
            'vllm:kv_cache_usage_perc': 0.4 * size * wave,
            'vllm:generation_tokens_total': int(size * (90 * t - 315 * math.cos(t / 7))),
            'vllm:prompt_tokens_total': int(size * 40 * t),
        }
        lines += ['%s{%s} %s' % (name, labels, value) for name, value in figures.items()]
        lines.append('llmd_info{%s,version="0",quantization="Q8_0",backend="cpu"} 1' % labels)
        lines += histogram('vllm:time_to_first_token_seconds', labels, 0.180 * wave, int(20 * t))
        lines += histogram('vllm:inter_token_latency_seconds', labels, 0.021, int(900 * t))
    return '\n'.join(lines) + '\n'


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def send(self, status, kind, body):
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == '/':
            self.send(200, 'text/html; charset=utf-8', open(PAGE, 'rb').read())
        elif self.path == '/metrics':
            self.send(200, 'text/plain; version=0.0.4', metrics().encode())
        else:
            self.send(404, 'application/json', b'{"error": {"message": "no such path"}}')

    def event(self, value):
        data = b'data: ' + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b'\n\n'
        self.wfile.write(b'%x\r\n%s\r\n' % (len(data), data))
        self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        if body['model'] == 'broken':
            return self.send(400, 'application/json', b'{"error": {"message": "this model <i>refuses</i>"}}')
        self.send_response(200)
        self.send_header('Content-Type', 'text/event-stream')
        self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        endless = 'endless' in body['messages'][-1]['content']
        words = ['word%d ' % i for i in range(100000)] if endless else [w + ' ' for w in WORDS]
        try:
            for word in words:
                self.event({'choices': [{'delta': {'content': word}}]})
                time.sleep(0.02)
            self.event({'choices': [], 'usage': {'completion_tokens': len(words)}})
            self.event(b'[DONE]')
            self.wfile.write(b'0\r\n\r\n')
        except OSError:
            self.close_connection = True  # stopped by the reader


def main():
    server = ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == '__main__':
    main()
