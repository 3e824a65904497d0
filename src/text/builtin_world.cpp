#include "text/builtin_world.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/builtin_words.h"
#include "text/permutation.h"

namespace fwpkm {
namespace {

template <size_t N>
std::string one_of(const std::array<words::Word, N>& list, Random& random) {
  return std::string(list[static_cast<size_t>(random.below(N))]);
}

}  // namespace

World::World(int64_t people, Random& random) {
  constexpr uint64_t kFirstNames = words::kWomen.size() + words::kMen.size();
  constexpr uint64_t kThingCount = words::kColours.size() * words::kThings.size();
  static_assert(kMostPeople <= static_cast<int64_t>(kThingCount));
  const Permutation first(kFirstNames, random.bits(), 0),
      last(words::kSurnames.size(), random.bits(), 0);
  const Permutation things(kThingCount, random.bits(), 0);
  for (int64_t i = 0; i < people; ++i) {
    const auto n = static_cast<uint64_t>(i);
    // The first names come round again with another surname.
    const uint64_t f = first(n % kFirstNames);
    const uint64_t s = last((n + n / kFirstNames) % words::kSurnames.size());
    Person person;
    person.woman = f < words::kWomen.size();
    person.name = fmt::format(
        "{} {}", person.woman ? words::kWomen[f] : words::kMen[f - words::kWomen.size()],
        words::kSurnames[s]);
    for (int kind = 0; kind < static_cast<int>(FactKind::kPersonKinds); ++kind) {
      person.facts.push_back({draw(static_cast<FactKind>(kind), random)});
    }
    const uint64_t thing = things(n);
    person.facts[static_cast<size_t>(FactKind::kThing)].value =
        fmt::format("{} {}", words::kColours[thing % words::kColours.size()],
                    words::kThings[thing / words::kColours.size()]);
    people_.push_back(std::move(person));
  }
  for (int64_t i = 0; i < people; ++i) {
    const int64_t other = (i + 1 + random.below(std::max<int64_t>(1, people - 1))) % people;
    fact(i, FactKind::kFriend).value = people_[static_cast<size_t>(other)].name;
  }
  for (size_t t = 0; t < words::kTowns.size(); ++t) {
    towns_.push_back({{draw(FactKind::kLandmark, random)}, {draw(FactKind::kDay, random)}});
  }
}

Fact& World::fact(int64_t person, FactKind kind) {
  std::vector<Fact>& facts = people_[static_cast<size_t>(person)].facts;
  if (kind < FactKind::kPersonKinds) {
    return facts[static_cast<size_t>(kind)];
  }
  const std::string& town = facts[static_cast<size_t>(FactKind::kTown)].value;
  const auto at =
      std::find(words::kTowns.begin(), words::kTowns.end(), town) - words::kTowns.begin();
  return towns_[static_cast<size_t>(at)][kind == FactKind::kLandmark ? 0 : 1];
}

std::string World::other_value(FactKind kind, const std::string& now, Random& random) const {
  if (kind == FactKind::kAge) {
    return fmt::format("{}", std::stoi(now) + 1);
  }
  std::string value = now;
  while (value == now) {
    value = draw(kind, random);
  }
  return value;
}

std::string World::draw(FactKind kind, Random& random) const {
  switch (kind) {
    case FactKind::kJob:
      return one_of(words::kJobs, random);
    case FactKind::kTown:
      return one_of(words::kTowns, random);
    case FactKind::kAge:
      return fmt::format("{}", 20 + random.below(60));
    case FactKind::kPet:
      return one_of(words::kPets, random);
    case FactKind::kPetName:
      return one_of(words::kPetNames, random);
    case FactKind::kPlace:
      return one_of(words::kPlaces, random);
    case FactKind::kCode:
      return fmt::format("{:04}", random.below(10000));
    case FactKind::kFood:
      return one_of(words::kFoods, random);
    case FactKind::kMonth:
      return one_of(words::kMonths, random);
    case FactKind::kLandmark:
      return one_of(words::kLandmarks, random);
    case FactKind::kDay:
      return one_of(words::kDays, random);
    default:
      return {};  // things and friends are set by the world
  }
}

}  // namespace fwpkm
