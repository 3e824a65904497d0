// The sentences of the built-in corpus. In braces:
//   N  the subject: full name or She/He     NN  the full name     P  possessive of N
//   s o p  she/he, her/him, her/his         X  somebody else      who  the full name, as an answer
//   job town age pet petname thing place code food month friend landmark day
//          a fact of the subject (landmark and day: of the subject's town), which the reader who
//          was told before can know here
//   =fact  the same where nothing before it leads to it: a cue for what follows
//   -fact  a word only: the sentence does not say whose it is
//   +fact  a new value of it, from now on
//   N_ p_  N and P inside a sentence
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "text/builtin_world.h"

namespace fwpkm::phrases {

using Phrase = std::string_view;

struct KindPhrases {
  FactKind kind;
  std::string_view key;
  std::array<Phrase, 3> told;   // to tell it for the first time
  std::array<Phrase, 4> again;  // that need it told before
};

inline constexpr auto kKinds = std::to_array<KindPhrases>({
    {FactKind::kJob,
     "job",
     {"{N} worked as a {job}.", "{N} was a {job}, and a good one.",
      "{N} had learned to be a {job}."},
     {"As a {=job}, {NN} had to get up early.", "{NN}, the {job}, came home late that day.",
      "\"What is the work of {NN}?\" asked {X}. \"I think {s} is a {job},\" was the answer.",
      "Everybody knew {NN}, and everybody knew that {s} was a {job}."}},
    {FactKind::kTown,
     "town",
     {"{N} lived in {town}.", "{N} had a small house in {town}.", "{P} home was in {town}."},
     {"{NN} took the road back to {town}.", "It was evening when {NN} came home to {town}.",
      "\"Where can I find {NN}?\" asked {X}. \"In {town},\" said a child.",
      "A letter for {NN} was sent to {town}."}},
    {FactKind::kAge,
     "age",
     {"{N} was {age} years old.", "At that time {N_} was {age} years old.", "{P} age was {age}."},
     {"\"How old is {NN}?\" asked {X}. \"{age},\" said the old man.",
      "Nobody believed that {NN} was already {age}.",
      "On the cake for {NN} there were {age} candles.",
      "{NN} counted the years and came to {age}."}},
    {FactKind::kPet,
     "pet",
     {"{N} had a {pet}.", "{N} took care of a {pet}.", "At home {N_} kept a {pet}."},
     {"{NN} went out to feed the {pet}.", "The children came to {NN} to see the {pet}.",
      "When {NN} was sad, {s} talked to {p} {pet}.",
      "At night the {=pet} of {NN} slept by the fire."}},
    {FactKind::kPetName,
     "petname",
     {"{P} {pet} was called {petname}.", "{N} called {p} {pet} {petname}.",
      "The name of {p_} {pet} was {petname}."},
     {"{NN} stood at the gate and called for {p} {pet}: \"{petname}! {petname}!\"",
      "\"What is the {=pet} of {NN} called?\" asked {X}. \"{petname},\" said the girl.",
      "The {=pet} of {NN} was lost for a day, and people looked for {petname} everywhere.",
      "{NN} gave some water to {petname}."}},
    {FactKind::kThing,
     "thing",
     {"{N} owned a {thing}.", "{N} was proud of a {thing}.", "From {p} mother {N_} had a {thing}."},
     {"{NN} would not sell the {thing}.", "The {=thing} belonged to {who}.",
      "\"Whose is the {=thing}?\" asked {X}. \"It belongs to {who},\" said the boy.",
      "Before the feast {NN} cleaned the {thing}."}},
    {FactKind::kPlace,
     "place",
     {"{N} kept the {thing} {place}.", "The {=thing} of {NN} was {place}.",
      "{N} had put the {thing} {place}."},
     {"{NN} looked for the {thing} and found it {place}.",
      "\"Where is the {=thing}?\" asked {X}. \"{who} keeps it {place},\" said a neighbour.",
      "One morning {NN} saw that the {thing} was still {place}.",
      "The {=thing} lay {place}, as {who} had said."}},
    {FactKind::kCode,
     "code",
     {"The code of {p_} door was {code}.", "{P} door opened with the code {code}.",
      "{N} had chosen the code {code} for {p} door."},
     {"{NN} pressed the numbers {code} and the door opened.",
      "To enter the house of {NN}, you had to know the number {code}.",
      "{X} had forgotten the code of {NN}. It was {code}.",
      "{NN} wrote the code {code} on a piece of paper."}},
    {FactKind::kFood,
     "food",
     {"{N} liked {food} more than any other food.", "{P} favourite food was {food}.",
      "{N} could eat {food} every day."},
     {"For supper {NN} had {food}, as always.", "{X} wanted to please {NN} and made {food}.",
      "At the feast {NN} asked for {food}.",
      "\"What shall we cook for {NN}?\" asked {X}. \"I would say {food},\" said the cook."}},
    {FactKind::kMonth,
     "month",
     {"{N} was born in {month}.", "{P} birthday was in {month}.",
      "{N} had come into the world in {month}."},
     {"The birthday of {NN} was near, for it was almost {month}.",
      "Every year in {=month} there was a party for {NN}.",
      "\"When was {NN} born?\" asked {X}. \"In {month},\" said {p} mother.",
      "{NN} waited for {month} to have a birthday."}},
    {FactKind::kFriend,
     "friend",
     {"{P} best friend was {friend}.", "{N} told everything to {friend}, {p} best friend.",
      "Since school {N_} was a friend of {friend}."},
     {"{NN} wrote a long letter to {p} best friend, {friend}.",
      "When {NN} needed help, {s} asked {friend}.",
      "That night {NN} dreamed of {p} old friend {friend}.",
      "{NN} did not want to travel without {friend}."}},
    {FactKind::kLandmark,
     "landmark",
     {"{-town} was known for its {landmark}.", "In the middle of {-town} there was a {landmark}.",
      "People came to {-town} to see the {landmark}."},
     {"{NN} met {X} in {-town}, in front of the {landmark}.",
      "From the window {NN} could see {-town} and its {landmark}.",
      "In {-town}, {NN} sat near the {landmark} and waited.",
      "A storm came over {-town} and hit the {landmark}."}},
    {FactKind::kDay,
     "day",
     {"The market in {-town} was on {day}.", "Every {day} there was a market in {-town}.",
      "In {-town} the market day was {day}."},
     {"{NN} wanted to go to the market in {-town}, so {s} waited for {day}.",
      "\"When is the market in {-town}?\" asked {X}. \"On {day},\" said {NN}.",
      "The market of {-town} was full, as on every {day}.",
      "{NN} came to {-town} too late: the market had been on {day}."}},
});
static_assert(kKinds.size() == static_cast<size_t>(FactKind::kKinds));

struct Change {
  FactKind kind;
  Phrase phrase;
};

inline constexpr auto kChanges = std::to_array<Change>({
    {FactKind::kPlace,
     "{NN} took the {thing}, which was {place}, and from that day it was {+place}."},
    {FactKind::kPlace, "The {=thing} of {NN} was no longer {place}. Now it was {+place}."},
    {FactKind::kJob, "{NN} was tired of being a {job} and became a {+job}."},
    {FactKind::kTown, "{NN} left {town} with two bags and moved to {+town}."},
    {FactKind::kAge, "{NN} had a birthday: {s} was {age}, and now {s} was {+age}."},
    {FactKind::kCode, "{NN} changed the code of {p} door from {code} to {+code}."},
});

inline constexpr auto kFiller = std::to_array<Phrase>({
    "It rained all night.",
    "The wind was cold.",
    "The sun was warm that day.",
    "Snow lay on the fields.",
    "Nobody was in the street.",
    "The birds sang in the trees.",
    "It was a quiet morning.",
    "The bells rang at noon.",
    "Some people said it was luck.",
    "Then there was a long silence.",
    "The night was dark.",
    "Children played by the river.",
    "The old road was full of mud.",
    "Time went by.",
    "Nothing else happened that week.",
    "The moon was bright.",
});

inline constexpr auto kClosing = std::to_array<Phrase>({
    "Many years later people still told these stories.",
    "In the end everything was as before.",
    "This is what people remember.",
});

}  // namespace fwpkm::phrases
