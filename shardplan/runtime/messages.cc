#include "shardplan/runtime/messages.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace shardplan::runtime {
namespace {

using sharding::Range;

/// The box of a tensor that is the part `part` of a whole.
at::Tensor box_of(const at::Tensor& tensor,
                  const std::vector<Range>& part,
                  const std::vector<Range>& box) {
  at::Tensor view = tensor;
  for (std::size_t d = 0; d < box.size(); ++d) {
    view = view.narrow(static_cast<std::int64_t>(d), box[d].start - part[d].start, box[d].size);
  }
  return view;
}

/// Pairs of stages with messages, in ascending order.
std::set<std::pair<int, int>> channels_of(const lower::PipelineProgram& program) {
  std::set<std::pair<int, int>> channels;
  for (const lower::Link& link : program.links) {
    channels.emplace(link.from, link.to);
  }
  return channels;
}

NeededGroup group_of(const lower::PipelineProgram& program, const std::pair<int, int>& channel) {
  std::set<std::int64_t> ranks;
  for (const int stage : {channel.first, channel.second}) {
    const std::int64_t first = program.first_rank_of(stage);
    const std::int64_t count = program.programs[static_cast<std::size_t>(stage)].mesh.size();
    for (std::int64_t r = first; r < first + count; ++r) {
      ranks.insert(r);
    }
  }
  return {Ranks(ranks.begin(), ranks.end()),
          "/messages/" + std::to_string(channel.first) + "/" + std::to_string(channel.second)};
}

}  // namespace

std::vector<NeededGroup> message_groups(const lower::PipelineProgram& program) {
  std::vector<NeededGroup> groups;
  for (const auto& channel : channels_of(program)) {
    NeededGroup group = group_of(program, channel);
    if (group.ranks.size() > 1) {
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

Result<std::unique_ptr<Messenger>> Messenger::create(const lower::PipelineProgram& program,
                                                     std::int64_t rank,
                                                     GroupSource* groups) {
  std::unique_ptr<Messenger> made(new Messenger(program, rank));
  made->find_pieces();
  const int here = program.device_of_rank(rank);
  for (const Channel& channel : channels_of(program)) {
    const auto& [from, to] = channel;
    if (program.device_of(from) != here && program.device_of(to) != here) {
      continue;
    }
    const NeededGroup needed = group_of(program, channel);
    Line& line = made->lines_[channel];
    if (needed.ranks.size() > 1) {
      if (groups == nullptr) {
        return Error{ErrorCode::kRuntime, "the plan is for several ranks, but this is one", {}, {}};
      }
      SHARDPLAN_ASSIGN_OR_RETURN(line.group, groups->group(needed.ranks, needed.purpose));
      if (program.device_of(from) == here) {
        line.thread = std::make_unique<Background>();
      }
    }
  }
  return made;
}

void Messenger::find_pieces() {
  const int here = program_.device_of_rank(rank_);
  for (std::size_t m = 0; m < program_.links.size(); ++m) {
    const lower::Link& link = program_.links[m];
    const lower::Program& from = program_.programs[static_cast<std::size_t>(link.from)];
    const lower::Program& to = program_.programs[static_cast<std::size_t>(link.to)];
    sends_.emplace_back();
    receives_.emplace_back();
    sent_part_.emplace_back();
    received_part_.emplace_back();
    const bool sends = program_.device_of(link.from) == here;
    const bool receives = program_.device_of(link.to) == here;
    if (!sends && !receives) {
      continue;
    }
    if (sends) {
      sent_part_[m] = sharding::part(from.value(link.sent).spec,
                                     link.type.shape,
                                     from.mesh,
                                     rank_ - program_.first_rank_of(link.from));
    }
    if (receives) {
      received_part_[m] = sharding::part(to.value(link.received).spec,
                                         link.type.shape,
                                         to.mesh,
                                         rank_ - program_.first_rank_of(link.to));
    }
    for (lower::Piece& piece : lower::pieces(program_, static_cast<int>(m))) {
      piece.sender += program_.first_rank_of(link.from);
      piece.receiver += program_.first_rank_of(link.to);
      if (piece.sender == rank_) {
        sends_[m].push_back(piece);
      }
      if (piece.receiver == rank_) {
        receives_[m].push_back(std::move(piece));
      }
    }
  }
}

Messenger::Line* Messenger::line(int message) {
  const lower::Link& link = program_.links[static_cast<std::size_t>(message)];
  return &lines_.at({link.from, link.to});
}

void Messenger::wait_for(const Sent& sent) {
  if (sent.thread != nullptr) {
    sent.thread->wait(sent.number);
  }
}

void Messenger::send(int message, const at::Tensor& part) {
  const auto m = static_cast<std::size_t>(message);
  const lower::Link& link = program_.links[m];
  sent_.make_room(link, wait_for);
  Line& out = *line(message);
  std::vector<lower::Piece> abroad;
  for (const lower::Piece& piece : sends_[m]) {
    if (piece.receiver == rank_) {
      to_itself_[message].push_back(part);
    } else {
      abroad.push_back(piece);
    }
  }
  Sent sent{0, nullptr, part};
  if (!abroad.empty()) {
    sent.thread = out.thread.get();
    sent.number = out.thread->start(
        [abroad = std::move(abroad), part, whole = sent_part_[m], group = out.group] {
          const at::NoGradGuard no_grad;
          std::vector<Transfer> transfers;
          for (const lower::Piece& piece : abroad) {
            for (std::int64_t member = 0; member < group->size(); ++member) {
              if (group->rank_of(member) == piece.receiver) {
                transfers.push_back({member, box_of(part, whole, piece.box).contiguous()});
              }
            }
          }
          group->transfer({}, transfers);
        });
  }
  sent_.keep(link, std::move(sent));
}

void Messenger::receive(int message, const at::Tensor& part) {
  const auto m = static_cast<std::size_t>(message);
  std::vector<Transfer> transfers;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  const Line& in = *line(message);
  for (const lower::Piece& piece : receives_[m]) {
    const at::Tensor into = box_of(part, received_part_[m], piece.box);
    if (piece.sender == rank_) {
      std::deque<at::Tensor>& mine = to_itself_.at(message);
      into.copy_(box_of(mine.front(), sent_part_[m], piece.box));
      mine.pop_front();
      continue;
    }
    const at::Tensor buffer = into.is_contiguous() ? into : at::empty(into.sizes(), into.options());
    if (!into.is_contiguous()) {
      copies.emplace_back(into, buffer);
    }
    for (std::int64_t member = 0; member < in.group->size(); ++member) {
      if (in.group->rank_of(member) == piece.sender) {
        transfers.push_back({member, buffer});
      }
    }
  }
  if (!transfers.empty()) {
    in.group->transfer(transfers, {});
  }
  for (const auto& [to, from] : copies) {
    to.copy_(from);
  }
}

void Messenger::finish() {
  sent_.clear(wait_for);
}

}  // namespace shardplan::runtime
