// Formats events, and matches backward with forward ops.
#include "observe/op_json.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

namespace npu::observe {

namespace {

// Graphs without a backward pass leave their ops here; beyond this number they are dropped.
constexpr std::size_t kMostForward = 1U << 20U;

std::string quote(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      result += escape;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

void append(std::string& to, std::int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  to.append(digits, end);
}

// Microseconds with three decimals.
void append_time(std::string& to, std::int64_t ns) {
  append(to, ns / 1000);
  const auto rest = static_cast<int>(ns % 1000);
  const char decimals[] = {'.', static_cast<char>('0' + rest / 100),
                           static_cast<char>('0' + rest / 10 % 10),
                           static_cast<char>('0' + rest % 10)};
  to.append(decimals, sizeof(decimals));
}

}  // namespace

std::string OpWriter::write(const DrainedOps& ops) {
  std::string text;
  std::vector<Waiting> backward = std::exchange(waiting_, {});
  for (const ThreadOps& thread : ops.threads) {
    for (const OpRecord& record : thread.records) {
      write_op(record, thread.thread_id, text);
      if (record.sequence < 0) continue;
      if (record.kind == OpKind::kBackward) {
        backward.push_back(
            {record.forward_thread, record.sequence, {thread.thread_id, record.start_ns}, false});
      } else if (record.kind == OpKind::kOp) {
        note_forward(record, thread);
      }
    }
  }
  write_flows(std::move(backward), text);
  return text;
}

std::unordered_map<const std::string*, OpTotal> OpWriter::take_totals() {
  return std::exchange(totals_, {});
}

void OpWriter::write_op(const OpRecord& record, std::int64_t thread_id, std::string& to) {
  if (record.kind == OpKind::kOp) {
    OpTotal& total = totals_[record.name];
    ++total.calls;
    total.self_ns += record.self_ns;
    if (!record.is_recursive) total.total_ns += record.duration_ns;
  }
  to += record.kind == OpKind::kAnnotation
            ? ",\n{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":"
            : ",\n{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":";
  to += quoted(record.name);
  to += ",\"pid\":";
  append(to, pid_);
  to += ",\"tid\":";
  append(to, thread_id);
  to += ",\"ts\":";
  append_time(to, std::max<std::int64_t>(record.start_ns - base_ns_, 0));
  to += ",\"dur\":";
  append_time(to, std::max<std::int64_t>(record.duration_ns, 0));
  if (record.sequence >= 0) {
    to += ",\"args\":{\"Sequence number\":";
    append(to, record.sequence);
    to += '}';
  }
  to += '}';
}

// Of the ops with a number, the one that began last created the node of the graph.
void OpWriter::note_forward(const OpRecord& record, const ThreadOps& on) {
  if (forward_count_ >= kMostForward) {
    forward_.clear();
    forward_count_ = 0;
  }
  const Place place{on.thread_id, record.start_ns};
  const auto [found, is_new] = forward_[on.torch_thread].try_emplace(record.sequence, place);
  if (is_new) {
    ++forward_count_;
  } else if (found->second.time_ns < record.start_ns) {
    found->second = place;
  }
}

// Threads are read one after the other: a forward op may arrive one chunk later than its backward.
void OpWriter::write_flows(std::vector<Waiting> backward, std::string& to) {
  for (const Waiting& node : backward) {
    auto& of_thread = forward_[node.thread];
    const auto found = of_thread.find(node.sequence);
    if (found == of_thread.end() || found->second.time_ns > node.at.time_ns) {
      if (!node.has_waited) waiting_.push_back({node.thread, node.sequence, node.at, true});
      continue;
    }
    ++flows_;
    for (const auto& [head, place] : {std::pair{",\n{\"ph\":\"s\",", found->second},
                                      {",\n{\"ph\":\"f\",\"bp\":\"e\",", node.at}}) {
      to += head;
      to += "\"id\":";
      append(to, flows_);
      to += ",\"cat\":\"fwdbwd\",\"name\":\"forward to backward\",\"pid\":";
      append(to, pid_);
      to += ",\"tid\":";
      append(to, place.thread_id);
      to += ",\"ts\":";
      append_time(to, std::max<std::int64_t>(place.time_ns - base_ns_, 0));
      to += '}';
    }
    of_thread.erase(found);
    --forward_count_;
  }
}

const std::string& OpWriter::quoted(const std::string* name) {
  std::string& text = quoted_[name];
  if (text.empty()) text = quote(*name);
  return text;
}

}  // namespace npu::observe
