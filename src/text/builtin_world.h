// The world of one built-in document: people and towns, and what is true of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"

namespace fwpkm {

enum class FactKind {
  kJob,
  kTown,
  kAge,
  kPet,
  kPetName,
  kThing,
  kPlace,  // where the thing is
  kCode,   // opens the person's door
  kFood,
  kMonth,   // of birth
  kFriend,  // another person's full name
  kPersonKinds,
  kLandmark = kPersonKinds,  // of a town
  kDay,                      // of a town's market
  kKinds,
};

struct Fact {
  std::string value;
  // Where the text said it last, and where it named whose it is; -1 if it never did.
  int64_t told = -1;
  int64_t owner_told = -1;
};

struct Person {
  std::string name;
  bool woman;
  std::vector<Fact> facts;  // by FactKind, below kPersonKinds
  int64_t mentioned = -1;   // where last
};

class World {
 public:
  // Names and things are distinct for up to kMostPeople people.
  World(int64_t people, Random& random);

  static constexpr int64_t kMostPeople = 360;

  std::vector<Person>& people() { return people_; }
  // A fact of the person, or of the town where the person lives now.
  Fact& fact(int64_t person, FactKind kind);
  // A value for the fact that differs from the one it has.
  std::string other_value(FactKind kind, const std::string& now, Random& random) const;

 private:
  std::string draw(FactKind kind, Random& random) const;

  std::vector<Person> people_;
  std::vector<std::vector<Fact>> towns_;  // by number; kLandmark, kDay
};

}  // namespace fwpkm
