#include "shardplan/lower/readers.h"

#include <algorithm>

namespace shardplan::lower {

using ir::OpId;
using ir::ValueId;

int reader_of(const ir::Graph& step, OpId op) {
  const ir::Op& own = step.op(op);
  if (own.phase == ir::Phase::kUpdate) {
    return kUpdateReader;
  }
  return own.source.valid() ? own.source.value : op.value;
}

std::vector<Readers> find_readers(const ir::Graph& step) {
  std::vector<Readers> out(step.values().size());
  const auto read = [&](ValueId value, int reader) {
    Readers& readers = out[value.index()];
    const OpId producer = step.value(value).producer;
    if (producer.valid() && reader == reader_of(step, producer)) {
      readers.own = true;
    } else if (readers.first != reader) {
      readers.several = readers.first != kNoReader;
      readers.first = reader;
    }
  };
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    for (const ValueId input : step.ops()[i].inputs) {
      read(input, reader_of(step, OpId(i)));
    }
  }
  for (const ir::Write& write : step.writes) {
    read(write.value, kWritesReader);
  }
  return out;
}

std::vector<OpId> write_points(const ir::Graph& step) {
  std::vector<std::size_t> last_use(step.values().size(), 0);
  for (std::size_t i = 0; i < step.ops().size(); ++i) {
    for (const ValueId input : step.ops()[i].inputs) {
      last_use[input.index()] = i;
    }
  }
  std::vector<OpId> points;
  points.reserve(step.writes.size());
  for (const ir::Write& write : step.writes) {
    const std::size_t made = step.value(write.value).producer.index();
    points.emplace_back(std::max(made, last_use[write.target.index()]));
  }
  return points;
}

}  // namespace shardplan::lower
