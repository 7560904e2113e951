#include "backend/cuda/graph.h"

namespace eitri::cuda {

namespace {
constexpr unsigned kNonBlocking = 1;  // does not wait for the legacy stream
constexpr int kCaptureOfThread = 1;
}  // namespace

OwnedStream::OwnedStream(const Device& device) : device_(device) {
  const ContextScope scope(device);
  require_ok(driver()->stream_create(&stream_, kNonBlocking), "create a stream");
}
OwnedStream::~OwnedStream() {
  const ContextScope scope(device_);
  driver()->stream_synchronize(stream_);
  driver()->stream_destroy(stream_);
}

Event::Event(const Device& device) : device_(device) {
  const ContextScope scope(device);
  require_ok(driver()->event_create(&event_, 0), "create an event");
}
Event::~Event() {
  const ContextScope scope(device_);
  driver()->event_destroy(event_);
}
void Event::record(Stream stream) { require_ok(driver()->event_record(event_, stream), "record an event"); }
void Event::wait() { require_ok(driver()->event_synchronize(event_), "wait for an event"); }
void Event::hold(Stream stream) const { require_ok(driver()->stream_wait_event(stream, event_, 0), "make a stream wait"); }
double Event::us_since(const Event& earlier) const {
  float ms = 0;
  require_ok(driver()->event_elapsed(&ms, earlier.event_, event_), "time between events");
  return 1e3 * static_cast<double>(ms);
}

void Graph::begin(Stream stream) { require_ok(driver()->stream_begin_capture(stream, kCaptureOfThread), "begin a capture"); }
void Graph::abandon(Stream stream) {
  Handle graph = nullptr;
  driver()->stream_end_capture(stream, &graph);
  if (graph != nullptr) driver()->graph_destroy(graph);
}
void Graph::end(Stream stream) {
  Handle graph = nullptr;
  require_ok(driver()->stream_end_capture(stream, &graph), "end a capture");
  const int result = driver()->graph_instantiate(&executable_, graph, 0);
  driver()->graph_destroy(graph);
  require_ok(result, "instantiate a graph");
}
Graph::~Graph() {
  const ContextScope scope(device_);
  if (executable_ != nullptr) driver()->graph_exec_destroy(executable_);
}
void Graph::launch(Stream stream) {
  const ContextScope scope(device_);
  require_ok(driver()->graph_launch(executable_, stream), "launch a graph");
}

}  // namespace eitri::cuda
