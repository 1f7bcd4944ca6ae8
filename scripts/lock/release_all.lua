-- lock/release_all: release several locks of an owner id that is not shared.
-- It does for each what lock/release does without a successor. It leaves no memory for late copies
-- of the acquisition: the client calls it only if there can be none.
-- uses     lib/typed
-- KEYS[1..]  members.lock_hash, members.channel, members.shared_counts, members.line: the line
--            lists waiting clients
-- ARGV[1]  owner (text): id
-- ARGV[2]  publish (command)
-- returns  {held (was_held flag)...}: 1 for each lock that was held, 0 for each other
local members, owner, publish = KEYS, ARGV[1], ARGV[2]

-- The usual case needs one look, and no function of the libraries below: no lock has counts of
-- WithOwner, and nobody is in line.
local beside, held = {}, {}
for i = 1, #members, 4 do
  beside[#beside + 1], beside[#beside + 2] = members[i + 2], members[i + 3]
end
if redis.call('exists', unpack(beside)) == 0 then
  for i = 1, #members, 4 do
    held[#held + 1] = call_typed('hash', 'hdel', members[i], owner) or 0
  end
  -- After the last write: whoever is woken finds all locks free.
  for n, was_held in ipairs(held) do
    if was_held == 1 then
      redis.call(publish, members[4 * n - 2], '0')
    end
  end
  return held
end

-- uses     lib/line, lib/notify_free, lib/shared_counts

local freed = {}
-- The first write is one that a full Redis allows; the others then pass, too.
for i = 1, #members, 4 do
  local lock_hash, shared_counts, line = members[i], members[i + 2], members[i + 3]
  local is_plain = redis.call('exists', shared_counts, line) == 0
  local had_own
  if not is_plain then
    had_own = keep_shared_counts(shared_counts, lock_hash, owner)
  end
  if had_own == nil then
    had_own = call_typed('hash', 'hdel', lock_hash, owner) == 1
    if had_own then
      freed[#freed + 1] = {i, is_plain}
    end
  end
  held[#held + 1] = had_own and 1 or 0
end
-- After the last write: an error here leaves none taken.
for _, lock in ipairs(freed) do
  local i, is_plain = unpack(lock)
  local keys = {members[i], members[i + 1], nil, members[i + 2], members[i + 3]}
  notify_free(keys, publish, nil, is_plain)
end
return held
