"""What eitri raises. Every message says which argument, what it got and what was expected."""


class Error(Exception):
    """The base of all of them."""


class InvalidArgument(Error, ValueError):
    """The caller's fault: a dtype, shape, stride, device or value that the operator does not define."""


class Unsupported(Error, NotImplementedError):
    """Legal, but no kernel takes it; the message lists each kernel's reason."""


class CompileFailed(Error, RuntimeError):
    """A kernel could not be compiled, or compiling is switched off (seal, EITRI_JIT)."""


class DeviceError(Error, RuntimeError):
    """The GPU or its driver reported an error."""


class OutOfMemory(Error, MemoryError):
    """No memory for a result or for workspace."""


class IoError(Error, OSError):
    """A file could not be read or written."""


class InternalError(Error, RuntimeError):
    """A bug in eitri."""
