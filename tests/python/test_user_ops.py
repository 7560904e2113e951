"""Operators of the user's own, on NumPy arrays. They need the host's C++ compiler, as the C++ tests of user ops do."""

import numpy as np
import pytest

import eitri

SCALE = "for (int64_t i = 0; i < n; ++i) y(i) = alpha * x(i);"


@eitri.user_op(body=SCALE)
def scale(x: "f32[n]", y: "out f32[n]", alpha: "f32" = 2.0):
    """y = alpha * x."""


def test_outputs_are_made_or_given():
    x = np.arange(5, dtype=np.float32)
    y = scale(x)
    assert y.dtype == np.float32 and y.shape == (5,)
    np.testing.assert_array_equal(y, 2 * x)
    given = np.empty(5, np.float32)
    assert scale(x, given, 0.5) is given
    np.testing.assert_array_equal(given, x / 2)
    np.testing.assert_array_equal(scale(x, alpha=3), 3 * x)
    assert scale(x[:0]).shape == (0,)
    assert scale.__name__ == "scale" and scale.__doc__ == "y = alpha * x." and scale.declaration == "scale(x: f32[n], y: out f32[n], alpha: f32)"


def test_extents_outputs_and_files(tmp_path):
    source = tmp_path / "split.cpp"
    source.write_text("for (int64_t i = 0; i < m; ++i)\n  for (int64_t j = 0; j < k; ++j) {\n    a(i, j) = x(i, j);\n    b(i, j) += x(i, k + j);\n  }\n")

    @eitri.user_op(source=source)
    def split(x: "strided f32[m, 2*k]", a: "out f32[m, k]", b: "inout f32[m, k]"): ...

    x = np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2]
    b = np.ones((3, 2), np.float32)
    a, again = split(x, b=b)
    assert again is b
    np.testing.assert_array_equal(a, x[:, :2])
    np.testing.assert_array_equal(b, 1 + x[:, 2:])


def test_refusals():
    x = np.arange(5, dtype=np.float32)
    for bad, match in (((x.astype(np.int32),), "scale: x is i32"), ((x, x[:3].copy()), r"y is f32\[3\]"), ((x[:, None],), "x is"),
                       ((x, None, "a"), "scale: alpha is 'a'; expected a number"), (([1.0],), "scale: x is a list; expected a tensor")):
        with pytest.raises((eitri.InvalidArgument, TypeError), match=match):
            scale(*bad)
    with pytest.raises(TypeError, match="lacks argument 'x'"):
        scale()
    with pytest.raises(TypeError, match="unknown argument 'beta'"):
        scale(x, beta=1)
    with pytest.raises(TypeError, match="two values for 'x'"):
        scale(x, x=x)
    read_only = x.copy()
    read_only.flags.writeable = False
    with pytest.raises(eitri.InvalidArgument, match="scale: y is read-only"):
        scale(x, read_only)
    with pytest.raises(eitri.InvalidArgument, match="expected body or source"):
        eitri.user_op()(scale)
    with pytest.raises(eitri.InvalidArgument, match="annotation of x is 'f32[n'".replace("[", r"\[")):

        @eitri.user_op(body="")
        def broken(x: "f32[n"): ...

    with pytest.raises(eitri.InvalidArgument, match="expected a text"):

        @eitri.user_op(body="")
        def typed(x: int): ...

    with pytest.raises(eitri.InvalidArgument, match="parameter x is keyword-only"):

        @eitri.user_op(body="")
        def named(*, x: "f32[n]"): ...

    np.testing.assert_array_equal(scale(x, alpha=np.float32(3)), 3 * x)


def test_an_extent_that_follows_from_nothing():
    @eitri.user_op(body="y(0) = x(0);")
    def loose(x: "f32[n]", y: "out f32[m]"): ...

    with pytest.raises(eitri.InvalidArgument, match="its extent m follows from no other argument"):
        loose(np.ones(3, np.float32))
    assert loose(np.full(3, 7, np.float32), np.zeros(2, np.float32))[0] == 7


def test_the_compilers_message_is_shown():
    @eitri.user_op(body="y(0) = no_such_thing;")
    def wrong(x: "f32[n]", y: "out f32[n]"): ...

    with pytest.raises(eitri.CompileFailed, match="no_such_thing"):
        wrong.compile()
    with pytest.raises(eitri.CompileFailed, match="no_such_thing"):
        wrong(np.ones(3, np.float32))
