// Runs a call that was made on the host: there, or on a GPU with the tensors and everything around them copied to and fro.
#pragma once

#include <optional>
#include <vector>

#include "backend/cuda/graph.h"
#include "dispatch/mirror.h"
#include "dispatch/op.h"

namespace eitri::harness {

/// The GPU that tests use; null when there is none.
const Device* test_gpu();

template <Operator Op> class Caller {
 public:
  using Args = typename Op::Args;
  /// `gpu` null: the host.
  Caller(const Maker& maker, const Device* gpu) : gpu_(gpu) {
    if (gpu == nullptr) return;
    mirror_ = Mirror::on_device(maker.ranges(), *gpu);
    stream_.emplace(*gpu);
  }
  void call(const Args& args) const {
    if (gpu_ == nullptr) return eitri::call<Op>(args);
    on_gpu([&] { eitri::call<Op>(mapped(args), *stream_); });
  }
  /// The call captured into a graph that is then launched. On a GPU only.
  void call_in_graph(const Args& args) const {
    on_gpu([&] {
      cuda::Graph graph(*gpu_, *stream_, [&] { eitri::call<Op>(mapped(args), *stream_); });
      graph.launch(*stream_);
      cuda::synchronize(*stream_);
    });
  }
  bool on_host() const { return gpu_ == nullptr; }

 private:
  template <class Body> void on_gpu(Body&& body) const {
    const cuda::ContextScope context(*gpu_);
    mirror_.upload(*stream_);
    body();
    mirror_.download(*stream_);
  }
  Args mapped(Args args) const {
    Op::tensors(args, [&](const char*, View& view) { view = mirror_.copy_of(view); });
    return args;
  }
  const Device* gpu_;
  Mirror mirror_;
  std::optional<cuda::OwnedStream> stream_;
};

}  // namespace eitri::harness
