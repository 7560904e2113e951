// Streams, events and graphs that Eitri makes for itself: tests, benchmarks and the tuner. Calls take the caller's.
#pragma once

#include "backend/cuda/cuda.h"

namespace eitri::cuda {

class OwnedStream {
 public:
  explicit OwnedStream(const Device& device);
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  operator Stream() const { return stream_; }

 private:
  const Device& device_;
  Stream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(const Device& device);
  ~Event();
  Event(const Event&) = delete;
  void record(Stream stream);
  void wait();
  /// Makes the stream wait for the event.
  void hold(Stream stream) const;
  /// Microseconds since another event; both have happened.
  double us_since(const Event& earlier) const;

 private:
  const Device& device_;
  Handle event_ = nullptr;
};

/// What body() launches on the stream, captured; it runs when launched.
class Graph {
 public:
  template <class Body> Graph(const Device& device, Stream stream, Body&& body) : device_(device) {
    begin(stream);
    try {
      body();
    } catch (...) {
      abandon(stream);
      throw;
    }
    end(stream);
  }
  ~Graph();
  Graph(const Graph&) = delete;
  void launch(Stream stream);

 private:
  void begin(Stream stream);
  void end(Stream stream);
  static void abandon(Stream stream);
  const Device& device_;
  Handle executable_ = nullptr;
};

}  // namespace eitri::cuda
