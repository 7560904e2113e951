"""aiter.test_common: comparing and timing, for scripts written against it. Nothing here is used by eitri's own tests."""

import logging
import time

import torch

logger = logging.getLogger("aiter")


def checkAllclose(a, b, rtol=1e-2, atol=1e-2, tol_err_ratio=0.05, msg="", printNum=8, printLog=True, max_abs_delta=None,
                  catastrophic_check=False, mask=None):
    """The share of elements that are not close (0 when all are); logged, and never an error, except that max_abs_delta and
    catastrophic_check raise AssertionError (with printLog=False they return 1.0): a difference above it, or a NaN, an infinity or a
    difference above half of max|b|."""
    close = torch.isclose(a, b, rtol=rtol, atol=atol)
    count = a.numel()
    if mask is not None:
        mask = mask.to(close.device).broadcast_to(close.shape)
        close = close | ~mask
        count = int(mask.sum())
    wrong = int((~close).sum())
    ratio = wrong / count if count else 0
    if wrong == 0:
        if printLog:
            logger.info("%s[checkAllclose atol=%s rtol=%s passed]", msg, atol, rtol)
        return 0
    delta = (a.double() - b.double()).abs()[~close].max().item()
    catastrophic = max_abs_delta is not None and not delta <= max_abs_delta
    if max_abs_delta is None and catastrophic_check:
        finite = bool(torch.isfinite(a).all() and torch.isfinite(b).all())
        catastrophic = not finite or (b.is_floating_point() and delta > 0.5 * max(b.abs().max().item(), 1.0))
    if not printLog:
        return 1.0 if catastrophic and ratio < tol_err_ratio else ratio
    verdict = "catastrophic" if catastrophic else "failed" if ratio > tol_err_ratio else "warning"
    logger.info("%s[checkAllclose atol=%s rtol=%s %s] %.1f %% (%d of %d) elements differ, by at most %s\n  a: %s\n  b: %s", msg, atol, rtol,
                verdict, 100 * ratio, wrong, count, delta, a[~close][:printNum], b[~close][:printNum])
    if catastrophic:
        raise AssertionError(f"{msg}[checkAllclose] largest difference is {delta}, {100 * ratio:.1f} % of the elements differ")
    return ratio


def run_perftest(func, *args, num_iters=101, num_warmup=2, testGraph=False, num_rotate_args=0, needTrace=False, use_cuda_event=False, **kwargs):
    """(what the last call returned, microseconds a call): wall-clock time, with events on a GPU. Arguments are not rotated."""
    for _ in range(num_warmup):
        data = func(*args, **kwargs)
    if torch.cuda.is_available() and any(isinstance(a, torch.Tensor) and a.is_cuda for a in args):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(num_iters):
            data = func(*args, **kwargs)
        end.record()
        end.synchronize()
        return data, start.elapsed_time(end) * 1e3 / num_iters
    begin = time.perf_counter()
    for _ in range(num_iters):
        data = func(*args, **kwargs)
    return data, (time.perf_counter() - begin) * 1e6 / num_iters


def perftest(num_iters=101, num_warmup=2, **options):
    """A decorator: the function then returns (result, microseconds)."""

    def decorate(func):
        def run(*args, **kwargs):
            return run_perftest(func, *args, num_iters=num_iters, num_warmup=num_warmup, **options, **kwargs)

        return run

    return decorate


def benchmark():
    """A decorator: the function then returns its arguments by name, with what it returned (a dict) added."""
    import inspect

    def decorate(func):
        def run(*args, **kwargs):
            row = inspect.getcallargs(func, *args, **kwargs)
            row.update(func(*args, **kwargs) or {})
            return row

        return run

    return decorate
