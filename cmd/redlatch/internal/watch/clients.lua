-- clients.lua: read what clients say of themselves. It writes nothing.
--
-- ARGV[1..] tags of clients. Their keys are no KEYS: on a cluster they are on one node, but in many slots
--
-- returns   for each tag a list: the client's name, its state and the state's pttl
local replies = {}
for i, tag in ipairs(ARGV) do
  local state = 'redisson_unlock_latch:{' .. tag .. '}:client'
  replies[i] = {
    redis.pcall('get', 'redlatch_client:{' .. tag .. '}'), redis.pcall('get', state), redis.pcall('pttl', state),
  }
end
return replies
