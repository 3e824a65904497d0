// The words of the built-in corpus. Everything that can follow "a" starts with a consonant.
#pragma once

#include <array>
#include <string_view>

namespace fwpkm::words {

using Word = std::string_view;

inline constexpr auto kWomen =
    std::to_array<Word>({"Mara",  "Nina",  "Clara", "Ruth",  "Tessa", "Hanna", "Greta", "Paula",
                         "Lena",  "Sofia", "Dora",  "Vera",  "Kate",  "Rosa",  "Julia", "Marta",
                         "Wanda", "Fiona", "Linda", "Sally", "Bella", "Carla", "Nora",  "Molly"});
inline constexpr auto kMen = std::to_array<Word>(
    {"Tom",   "Paul",   "Karl",   "David",  "Simon", "Peter",  "Felix", "Bruno",
     "Hugo",  "Martin", "Robert", "Victor", "Jack",  "Rolf",   "Luke",  "Daniel",
     "Frank", "Gregor", "Samuel", "Walter", "Ben",   "Conrad", "Nick",  "Leo"});
inline constexpr auto kSurnames =
    std::to_array<Word>({"Holt",  "Berg",  "Marsh", "Reed",   "Stone", "Wolf", "Lane",  "Field",
                         "Moss",  "Hill",  "Brook", "Fox",    "Dale",  "Ford", "Cross", "Banks",
                         "Price", "Sharp", "Frost", "Winter", "Pike",  "Rowe", "Gray",  "Vale"});
inline constexpr auto kTowns = std::to_array<Word>(
    {"Norwick", "Tarn",    "Belford",   "Stonebridge", "Redhill",     "Longmere", "Fallow",
     "Crane",   "Dunmore", "Westcliff", "Harbour",     "Milton",      "Sandford", "Greenway",
     "Kestrel", "Lowell",  "Pinewood",  "Rockport",    "Summerfield", "Thornton"});
inline constexpr auto kJobs = std::to_array<Word>(
    {"baker",  "teacher", "doctor",     "farmer",     "painter",  "carpenter", "singer",
     "lawyer", "sailor",  "gardener",   "blacksmith", "postman",  "fisher",    "cook",
     "tailor", "miller",  "watchmaker", "librarian",  "shepherd", "driver"});
inline constexpr auto kPets =
    std::to_array<Word>({"cat", "dog", "goat", "horse", "parrot", "rabbit", "hen", "donkey",
                         "turtle", "mouse", "pony", "duck"});
inline constexpr auto kPetNames =
    std::to_array<Word>({"Biscuit", "Pepper", "Cloud",   "Button",   "Shadow", "Ginger", "Pebble",
                         "Whisper", "Nutmeg", "Thunder", "Clover",   "Marble", "Ribbon", "Bramble",
                         "Cinder",  "Muffin", "Rusty",   "Snowball", "Tinker", "Velvet"});
inline constexpr auto kColours =
    std::to_array<Word>({"red", "blue", "green", "yellow", "black", "white", "brown", "grey",
                         "silver", "purple", "golden", "pink"});
inline constexpr auto kThings = std::to_array<Word>(
    {"lamp",   "kite",   "book",   "coat",    "hat",    "clock",  "drum",   "vase",
     "chair",  "mirror", "basket", "blanket", "violin", "bottle", "ring",   "map",
     "key",    "flute",  "boat",   "bicycle", "ladder", "tent",   "teapot", "scarf",
     "hammer", "candle", "mask",   "carpet",  "bell",   "box"});
inline constexpr auto kPlaces = std::to_array<Word>(
    {"in the cellar", "under the bed", "behind the stove", "in the garden", "on the roof",
     "in the barn", "under the stairs", "in the kitchen", "on the top shelf", "behind the door",
     "in the chest", "in the tower", "near the well", "in the stable", "under the bridge",
     "in the workshop", "on the balcony", "in the hall"});
inline constexpr auto kFoods = std::to_array<Word>(
    {"soup", "bread", "fish", "cheese", "pancakes", "beans", "rice", "dumplings", "cake", "noodles",
     "plums", "honey", "mushrooms", "potatoes", "pears", "walnuts"});
inline constexpr auto kMonths =
    std::to_array<Word>({"January", "February", "March", "April", "May", "June", "July", "August",
                         "September", "October", "November", "December"});
inline constexpr auto kDays = std::to_array<Word>(
    {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"});
inline constexpr auto kLandmarks = std::to_array<Word>(
    {"stone bridge", "windmill", "lighthouse", "castle", "market hall", "bell tower", "fountain",
     "town gate", "museum", "chapel", "railway station", "theatre", "harbour wall", "school",
     "water mill", "palace"});

}  // namespace fwpkm::words
